"""A run of the real three processes with three algorithms, recorded for whoever looks at records."""

import socket
from pathlib import Path

from braidrl.utils.run_folder import RunFolder
from braidrl.utils.tiny_model import create_tiny_model
from commands import serving
from tests.e2e.runs import Launch

CONFIG = """\
max_steps = {steps}
seq_len = 160
[model]
path = "{model}"
[trainer]
micro_batch_tokens = 32768
[trainer.optim]
lr = 2e-3
[orchestrator]
batch_size = 48
constant_trainer_batch_size = false
[orchestrator.renderer]
name = "qwen3"
enable_thinking = false
[orchestrator.train]
group_size = 4
[orchestrator.train.sampling]
max_tokens = 8
[[orchestrator.train.source]]
name = "short"
env.taskset.id = "reverse-text"
env.taskset.max_length = 5
algo.type = "max_rl"
[[orchestrator.train.source]]
name = "guessing"
env.taskset.id = "guess-number"
algo.type = "echo"
algo.roles.user.alpha = 0.1
[[orchestrator.train.source]]
name = "long"
env.taskset.id = "arithmetic"
algo.type = "opd"
algo.teacher.name = "{teacher}"
algo.teacher.base_url = "{url}"
[[orchestrator.eval.source]]
name = "heldout"
num_tasks = 8
env.taskset.id = "reverse-text"
env.taskset.split = "heldout"
sampling.max_tokens = 8
"""


def play_mixed(folder: Path, model: Path, steps: int = 3) -> RunFolder:
    """`max_rl`, `echo` and `opd` in one run: every step is one micro batch with tokens in all three components."""
    teacher = create_tiny_model(folder / "teacher", seed=1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["inference", "--model.path", str(teacher), "--port", str(port), "--seq-len", "160"]
    words += ["--output-dir", str(folder / "served")]
    launch = Launch(folder / "launch", model)
    with serving(words, folder, folder / "teacher.log") as url:
        launch.config.write_text(CONFIG.format(model=model, teacher=teacher, url=url, steps=steps))
        launch.finish()
    return launch.run
