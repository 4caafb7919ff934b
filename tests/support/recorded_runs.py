"""A recorded run of the three real processes with three algorithms."""

import socket
from pathlib import Path

from braidrl.utils.run_folder import RunFolder
from braidrl.utils.tiny_model import create_tiny_model
from commands import serving
from tests.support.paths import EXAMPLES
from tests.support.runs import Launch

EXAMPLE = EXAMPLES / "mixed"


def play_mixed(folder: Path, model: Path, steps: int = 3) -> RunFolder:
    """Run several steps of examples/mixed from `model`, with a teacher of the same size and short evaluations.

    Its algorithms are `max_rl`, `echo` and `opd`. Each step is one micro batch with tokens in all three components."""
    teacher = create_tiny_model(folder / "teacher", seed=1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [
        "inference",
        "@",
        str(EXAMPLE / "teacher.toml"),
        "--model.path",
        str(teacher),
        "--port",
        str(port),
    ]
    launch = Launch(folder / "launch", model)
    with serving([*words, "--output-dir", str(folder / "served")], folder, folder / "teacher.log") as url:
        text = (EXAMPLE / "rl.toml").read_text()
        for written, here in (
            ("outputs/mixed/warmup/weights/step_000450", str(model)),
            ("outputs/grpo/rl/weights/step_000040", str(teacher)),
            ("http://127.0.0.1:8015/v1", url),
            ("num_tasks = 192", "num_tasks = 8"),
        ):
            assert written in text
            text = text.replace(written, here)
        launch.config.write_text(text)
        launch.finish("--max_steps", str(steps))
    return launch.run
