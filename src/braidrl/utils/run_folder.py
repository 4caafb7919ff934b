"""Layout of a run folder. No other module hard-codes its paths."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

STEP = re.compile(r"step_(\d+)(\.[a-z]+)?")


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. Steps are 1-based; weights of step n are policy version n."""

    root: Path

    @property
    def configs(self) -> Path:
        return self.root / "config"

    @property
    def record(self) -> Path:
        """Record of every launch: command, machine, versions, and how it ended."""
        return self.root / "run.json"

    @property
    def packages(self) -> Path:
        """Package versions of the last launch in pip's constraints format."""
        return self.root / "packages.txt"

    @property
    def live(self) -> Path:
        """Current state of a running job, updated every second."""
        return self.root / "live.json"

    @property
    def trackers(self) -> Path:
        """Local files of experiment trackers."""
        return self.root / "trackers"

    @property
    def notices(self) -> Path:
        """JSONL with one line per failed tracker of the last launch, `{"tracker": label, "message": text}`."""
        return self.trackers / "notices.jsonl"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def metrics(self, process: str) -> Path:
        """JSONL with one line per step (`trainer`, `orchestrator`) or per evaluated version (`eval`)."""
        return self.root / "metrics" / f"{process}.jsonl"

    def environment(self, number: int) -> Path:
        """Prompts and reward of an environment passed as Python objects; `number` is its index in the config."""
        return self.root / "environments" / str(number)

    def train_episodes(self, step: int) -> Path:
        """JSONL with one line per episode finished for the batch of this step."""
        return self.root / "episodes" / "train" / f"step_{step:06d}.jsonl"

    def eval_episodes(self, version: int) -> Path:
        """JSONL with one line per evaluation episode of this policy version."""
        return self.root / "episodes" / "eval" / f"step_{version:06d}.jsonl"

    def token_records(self, step: int) -> Path:
        """JSONL with one line per recorded sample of this step: the trainer's values for its tokens."""
        return self.root / "episodes" / "tokens" / f"step_{step:06d}.jsonl"

    def batch(self, step: int) -> Path:
        return self.root / "batches" / f"step_{step:06d}.msgpack"

    def weights(self, version: int) -> Path:
        """Published weights of a policy version: a Hugging Face folder, a peft folder or a delta."""
        return self.root / "weights" / f"step_{version:06d}"

    def checkpoint(self, step: int) -> Path:
        return self.root / "checkpoints" / f"step_{step:06d}"

    def trainer_checkpoint(self, step: int) -> Path:
        return self.checkpoint(step) / "trainer"

    def orchestrator_checkpoint(self, step: int) -> Path:
        return self.checkpoint(step) / "orchestrator.json"

    def published(self, kind: str) -> list[int]:
        """Return the steps with a published `weights`, `checkpoints` or `batches` entry, ascending, without `.tmp`."""
        folder = self.root / kind
        if not folder.is_dir():
            return []
        matches = (STEP.fullmatch(path.name) for path in folder.iterdir() if not path.name.endswith(".tmp"))
        return sorted(int(match[1]) for match in matches if match)

    def checkpoints(self) -> list[int]:
        """Return the steps whose checkpoint is complete (both halves published), ascending."""
        return [
            step
            for step in self.published("checkpoints")
            if self.trainer_checkpoint(step).is_dir() and self.orchestrator_checkpoint(step).is_file()
        ]

    def forget_after(self, step: int) -> None:
        """Remove the results of all steps after `step`, so that a run resumed there does not record them twice."""
        for kind in ("batches", "weights", "checkpoints"):
            for path in (self.root / kind).glob("step_*"):
                number = int(STEP.fullmatch(path.name)[1])  # type: ignore[index]
                if path.name.endswith(".tmp") or number > step or step == 0:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in (self.root / "episodes").glob("*/step_*.jsonl"):
            if int(STEP.fullmatch(path.name)[1]) > step:  # type: ignore[index]
                path.unlink()
