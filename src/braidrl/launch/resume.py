"""Preparation of the run folder: empty, from its own checkpoint, or from a checkpoint of another run."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from braidrl.configs.core.errors import ConfigError
from braidrl.launch.options import LaunchOptions
from braidrl.monitors.metrics import MetricsWriter
from braidrl.utils.publish import publish_folder
from braidrl.utils.run_folder import RunFolder


def open_run_folder(run: RunFolder, options: LaunchOptions) -> int:
    """Prepare the run folder and return the step to continue after, 0 for a new run.

    Raises `ConfigError` if a run would be overwritten, or if there is nothing to resume.
    """
    if options.clean:
        shutil.rmtree(run.root, ignore_errors=True)
    occupied = run.root.is_dir() and any(run.root.iterdir())
    if options.resume and options.resume_from is not None:
        step = _resume_from(run, options.resume_from, occupied)
    else:
        _check_occupied(run, options, occupied)
        step = max(run.checkpoints(), default=0)
    run.forget_after(step)
    for process in ("trainer", "orchestrator", "eval"):
        # The processes also do this, but progress is read from these files before they have started.
        MetricsWriter(run.metrics(process)).truncate_after(step)
    run.root.mkdir(parents=True, exist_ok=True)
    return step


def check_clean(config: BaseModel, root: Path, options: LaunchOptions) -> None:
    """Raise `ConfigError` if `--clean` would remove a file that the config reads, such as the model."""
    for key, text in _texts(config.model_dump(mode="json")) if options.clean else ():
        path = Path(text).absolute()
        if root.absolute() in path.parents and path.exists():
            raise ConfigError(
                key, f"{text} is inside {root}, which --clean would remove; set another output_dir"
            )


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value) of every string in a config."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{key}[{index}]")


def _check_occupied(run: RunFolder, options: LaunchOptions, occupied: bool) -> None:
    if occupied and not options.resume:
        raise ConfigError(
            "output_dir",
            f"{run.root} already contains a run; continue it with --resume, remove it with --clean, or set another "
            "output_dir",
        )
    if options.resume and not occupied:
        raise ConfigError("--resume", f"there is no run in {run.root}; omit --resume to start one")


def _resume_from(run: RunFolder, path: Path, occupied: bool) -> int:
    """Return the step of the checkpoint at `path`. A checkpoint of another run is copied into `run`."""
    folder, step = find_checkpoint(path)
    if folder.resolve() == run.checkpoint(step).resolve():
        return step
    if occupied:
        raise ConfigError(
            "output_dir",
            f"{run.root} already contains a run, and {path} belongs to another one; set another output_dir to continue "
            "from that checkpoint",
        )
    if (
        folder.parent.name == "checkpoints"
        and (weights := RunFolder(folder.parents[1]).weights(step)).is_dir()
    ):
        _copy_published(weights, run.weights(step))
    _copy_published(folder, run.checkpoint(step))
    return step


def _copy_published(source: Path, target: Path) -> None:
    with publish_folder(target) as staging:
        shutil.copytree(source, staging, copy_function=_link_or_copy, dirs_exist_ok=True)


def find_checkpoint(path: Path) -> tuple[Path, int]:
    """Return (folder, step) of the complete checkpoint at `path`, or of the newest one if `path` is a run folder.

    Raises `ConfigError` if there is none.
    """
    checkpoints = RunFolder(path).checkpoints()
    if checkpoints:
        return RunFolder(path).checkpoint(checkpoints[-1]), checkpoints[-1]
    progress, other = path / "trainer" / "progress.json", path / "orchestrator.json"
    for half in (progress, other):
        if not half.is_file():
            raise ConfigError(
                "--resume",
                f"{path} is neither a run folder with a complete checkpoint nor a checkpoint: {half} is missing",
            )
    return path.absolute(), json.loads(progress.read_text())["step"]


def _link_or_copy(source: str, target: str) -> None:
    """Create a hard link, or a copy if the file system cannot. A link is safe because published files never change."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
