"""Working folder for the commands of the docs: small versions of the files that a reader has at that point."""

import re
import shutil
from pathlib import Path

import torch

from braidrl.configs.core.load import to_toml
from braidrl.configs.eval import EvalConfig
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.state.checkpoint import save_checkpoint
from braidrl.utils.run_folder import RunFolder
from tests.support.documents import REPOSITORY, blocks_of
from tests.support.report_runs import record_run
from tests.support.stub_trainer import orchestrator_config
from tests.support.trainer_batches import trainer_config

RUN = """\
[model]
path = "models/my-model"
[[orchestrator.train.source]]
env.taskset.id = "reverse-text"
"""
FILES = {
    "run.toml": RUN,
    "base.toml": RUN,
    "mine.toml": "max_steps = 20\n",
    "experiment.toml": "[trainer.optim]\nlr = 1e-4\n",
    "eval.toml": '[[source]]\nenv.taskset.id = "reverse-text"\n',
    "inference.toml": '[model]\npath = "models/my-model"\n',
    "orchestrator.toml": '[model]\npath = "models/my-model"\n[[train.source]]\nenv.taskset.id = "reverse-text"\n',
    "trainer.toml": '[model]\npath = "models/my-model"\n',
}
"""Minimal config files that a reader has."""
STEP = 2
"""Step with weights and a checkpoint in the run of `record`."""
RUN_PATH = re.compile(r"((?:outputs|/)[\w/.-]*?)(?:/(?:weights|checkpoints|episodes)/.*)?")


async def record(folder: Path, model: Path) -> RunFolder:
    """Record a small run of an adapter with episodes, metrics, weights, a checkpoint and an evaluation source."""
    run = await record_run(folder, model)
    held = {"name": "held", "env": {"taskset": {"id": "stub-tasks"}}}
    config = orchestrator_config(model, folder, "http://127.0.0.1:9/v1").model_copy(
        update={"eval": EvalConfig.model_validate({"source": [held]})}
    )
    (run.configs / "orchestrator.toml").write_text(to_toml(config))
    alone = Parallel(0, 1, torch.device("cpu"))
    settings = trainer_config(model, folder, lora={"rank": 2})
    (run.configs / "trainer.toml").write_text(to_toml(settings))
    learner = Learner.load(settings, alone)
    learner.publish(run, STEP)
    save_checkpoint(run.trainer_checkpoint(STEP), learner.model, learner.optimizer, STEP, alone)
    return run


class Stage:
    """Create a reader's folder with runs and models."""

    def __init__(self, folder: Path, recorded: RunFolder, model: Path) -> None:
        self.folder = folder
        self.recorded = recorded
        (folder / "models").mkdir()
        (folder / "models" / "my-model").symlink_to(model)
        self.run(folder / "outputs" / "run", [])

    def write(self, document: Path) -> None:
        """Write the files shown in a document."""
        for block in blocks_of(document):
            if block.file is not None:
                (self.folder / block.file).write_text(block.text)

    def files(self, args: list[str]) -> list[str]:
        """Return the words of a command with the paths of its config files replaced by paths valid in this process."""
        found = list(args)
        for at, word in enumerate(args[:-1]):
            name = args[at + 1]
            if word != "@" or (self.folder / name).exists():
                continue
            if name in FILES:
                (self.folder / name).write_text(FILES[name])
            else:
                assert (REPOSITORY / name).is_file(), f"there is no file {name}"
                found[at + 1] = str(REPOSITORY / name)
        return found

    def runs(self, args: list[str]) -> list[str]:
        """Create the runs that a command names, with every step, and return its words with the paths of these runs."""
        steps = [int(step) for step in re.findall(r"(?:--step |step_0*)(\d+)", " ".join(args))]
        found = []
        for word in args:
            path = self.folder / word.lstrip("/") if RUN_PATH.fullmatch(word) else None
            if path is not None:
                root = RUN_PATH.fullmatch(word)[1]
                self.run(self.folder / root.lstrip("/"), steps)
            found.append(word if path is None else str(path))
        return found

    def run(self, folder: Path, steps: list[int]) -> None:
        if not folder.exists():
            shutil.copytree(self.recorded.root, folder)
        run = RunFolder(folder)
        for step in steps:
            for place in (run.weights, run.checkpoint):
                if not place(step).exists():
                    shutil.copytree(place(STEP), place(step))
