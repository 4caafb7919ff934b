"""Which policy a path means: a model's folder, a run's, or a checkpoint's."""

import json
from dataclasses import dataclass
from pathlib import Path

from braidrl.utils.adapter import TENSORS, is_adapter
from braidrl.utils.run_folder import STEP, RunFolder

MASTERS = "model*.safetensors"
"""The float32 weights in the trainer's half of a checkpoint: one file, or one of each process that held a part."""


@dataclass(frozen=True)
class ModelSource:
    """One policy on this disk: as a Hugging Face folder, as a checkpoint of the trainer, or both."""

    weights: Path | None
    """Hugging Face folder with its weights; of an adapter, peft's."""
    checkpoint: Path | None
    """The trainer's half of a checkpoint."""
    run: RunFolder | None
    """The run that made it, where it lies in one."""
    step: int = 0
    """Its version; 0 where no run made it."""

    @property
    def adapter(self) -> Path | None:
        """The folder that says how the policy is added to a model, if it is an adapter; None: it is a whole model."""
        return next(
            (folder for folder in (self.weights, self.checkpoint) if folder and is_adapter(folder)), None
        )


def find_model(path: Path, step: int | None = None) -> ModelSource:
    """What `path` means; of a run folder, its `step` (None: the newest that has weights or a checkpoint).

    Raises `FileNotFoundError` where there is nothing, and `ValueError` for a step of what has none.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    half = path if path.name == "trainer" else path / "trainer"
    single = _model_folder(path) if _is_model(path) else None
    if single is None and any(half.glob(MASTERS)):
        single = _checkpoint(half)
    if single is not None:
        if step is not None and step != single.step:
            raise ValueError(f"{path} is a single model, not a run folder; leave step {step} away")
        return single
    return _of_run(path, step)


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or (folder / TENSORS).is_file()


def _model_folder(path: Path) -> ModelSource:
    match = STEP.fullmatch(path.name)
    if match is None or path.absolute().parent.name != "weights":
        return ModelSource(path, None, None)
    return ModelSource(path, None, RunFolder(path.absolute().parents[1]), int(match[1]))


def _checkpoint(half: Path) -> ModelSource:
    step = json.loads((half / "progress.json").read_text())["step"]
    folder = half.absolute().parent
    if folder.parent.name != "checkpoints":
        return ModelSource(None, half, None, step)
    run = RunFolder(folder.parents[1])
    weights = run.weights(step)
    return ModelSource(weights if _is_model(weights) else None, half, run, step)


def _of_run(path: Path, step: int | None) -> ModelSource:
    run = RunFolder(path)
    checkpoints = {n: run.trainer_checkpoint(n) for n in run.published("checkpoints")}
    checkpoints = {n: folder for n, folder in checkpoints.items() if folder.is_dir()}
    weights = {n: run.weights(n) for n in run.published("weights") if _is_model(run.weights(n))}
    known = sorted(checkpoints.keys() | weights.keys())
    if not known:
        raise FileNotFoundError(
            f"{path} holds neither config.json (a Hugging Face folder) nor weights or checkpoints (a run folder), nor "
            f"{TENSORS} (an adapter)"
        )
    step = known[-1] if step is None else step
    if step not in known:
        raise ValueError(f"{path} has no weights and no checkpoint of step {step}; it has those of {known}")
    return ModelSource(weights.get(step), checkpoints.get(step), run, step)
