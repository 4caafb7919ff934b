"""Resolution of a path to a policy: a model folder, a run folder or a checkpoint."""

import json
from dataclasses import dataclass
from pathlib import Path

from braidrl.utils.adapter import TENSORS, is_adapter
from braidrl.utils.run_folder import STEP, RunFolder

MASTERS = "model*.safetensors"
"""Float32 weights in the trainer's half of a checkpoint: one file, or one per process that held a shard."""


@dataclass(frozen=True)
class ModelSource:
    """One policy on disk: as a Hugging Face folder, as a checkpoint of the trainer, or both."""

    weights: Path | None
    """Hugging Face folder with the weights; a peft folder if the policy is an adapter."""
    checkpoint: Path | None
    """Trainer's half of a checkpoint."""
    run: RunFolder | None
    """Run that produced the policy; None if the path is outside a run folder."""
    step: int = 0
    """Policy version; 0 if no run produced it."""

    @property
    def adapter(self) -> Path | None:
        """Folder with the adapter's settings; None if the policy is a whole model."""
        return next(
            (folder for folder in (self.weights, self.checkpoint) if folder and is_adapter(folder)), None
        )


def find_model(path: Path, step: int | None = None) -> ModelSource:
    """Return the policy at `path`. In a run folder, `step` selects it (None: newest with weights or a checkpoint).

    Raises `FileNotFoundError` if there is no policy, and `ValueError` for a step that does not exist.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    half = path if path.name == "trainer" else path / "trainer"
    single = _model_folder(path) if _is_model(path) else None
    if single is None and any(half.glob(MASTERS)):
        single = _checkpoint(half)
    if single is not None:
        if step is not None and step != single.step:
            raise ValueError(f"{path} is a single model, not a run folder; remove step {step}")
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
            f"no model in {path}; it must contain config.json (a Hugging Face folder), {TENSORS} (an adapter), or "
            "weights/ or checkpoints/ (a run folder)"
        )
    step = known[-1] if step is None else step
    if step not in known:
        raise ValueError(f"{path} has no weights or checkpoint of step {step}; available steps: {known}")
    return ModelSource(weights.get(step), checkpoints.get(step), run, step)
