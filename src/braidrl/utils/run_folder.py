"""The layout of a run folder: the one place that knows where things lie."""

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
        """Who launched the run, where, when, with what, and how it ended."""
        return self.root / "run.json"

    @property
    def packages(self) -> Path:
        """Versions of all packages of the last launch, a line each, as pip takes them."""
        return self.root / "packages.txt"

    @property
    def live(self) -> Path:
        """What the run does right now."""
        return self.root / "live.json"

    @property
    def trackers(self) -> Path:
        """What experiment trackers keep on this machine."""
        return self.root / "trackers"

    @property
    def notices(self) -> Path:
        """JSONL: trackers of the last launch that failed, `{"tracker": label, "message": text}`."""
        return self.trackers / "notices.jsonl"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def metrics(self, process: str) -> Path:
        """JSONL, one line a step (`trainer`, `orchestrator`) or an evaluated version (`eval`)."""
        return self.root / "metrics" / f"{process}.jsonl"

    def environment(self, number: int) -> Path:
        """Prompts and reward of an environment that was given as Python objects, by its place in the config."""
        return self.root / "environments" / str(number)

    def train_episodes(self, step: int) -> Path:
        """JSONL, one line an episode that was finished for this step's batch."""
        return self.root / "episodes" / "train" / f"step_{step:06d}.jsonl"

    def eval_episodes(self, version: int) -> Path:
        """JSONL, one line an evaluation episode of this policy version."""
        return self.root / "episodes" / "eval" / f"step_{version:06d}.jsonl"

    def token_records(self, step: int) -> Path:
        """JSONL, one line a sample of this step's batch: what the trainer computed of its tokens."""
        return self.root / "episodes" / "tokens" / f"step_{step:06d}.jsonl"

    def batch(self, step: int) -> Path:
        return self.root / "batches" / f"step_{step:06d}.msgpack"

    def weights(self, version: int) -> Path:
        """A Hugging Face folder."""
        return self.root / "weights" / f"step_{version:06d}"

    def checkpoint(self, step: int) -> Path:
        return self.root / "checkpoints" / f"step_{step:06d}"

    def trainer_checkpoint(self, step: int) -> Path:
        return self.checkpoint(step) / "trainer"

    def orchestrator_checkpoint(self, step: int) -> Path:
        return self.checkpoint(step) / "orchestrator.json"

    def published(self, kind: str) -> list[int]:
        """Steps for which a `weights`, `checkpoints` or `batches` entry was published, ascending; `.tmp` is not."""
        folder = self.root / kind
        if not folder.is_dir():
            return []
        matches = (STEP.fullmatch(path.name) for path in folder.iterdir() if not path.name.endswith(".tmp"))
        return sorted(int(match[1]) for match in matches if match)

    def checkpoints(self) -> list[int]:
        """Steps with a complete checkpoint, ascending: both halves were published."""
        return [
            step
            for step in self.published("checkpoints")
            if self.trainer_checkpoint(step).is_dir() and self.orchestrator_checkpoint(step).is_file()
        ]

    def forget_after(self, step: int) -> None:
        """Remove what a run did after `step`, so that `--resume` from there does nothing twice."""
        for kind in ("batches", "weights", "checkpoints"):
            for path in (self.root / kind).glob("step_*"):
                number = int(STEP.fullmatch(path.name)[1])  # type: ignore[index]
                if path.name.endswith(".tmp") or number > step or step == 0:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in (self.root / "episodes").glob("*/step_*.jsonl"):
            if int(STEP.fullmatch(path.name)[1]) > step:  # type: ignore[index]
                path.unlink()
