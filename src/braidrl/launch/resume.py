"""Where a run starts: in an empty folder, after its own checkpoint, or after that of another run."""

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
    """Make the run folder ready and return the step to continue after (0: from the start).

    Raises `ConfigError` where a run would be overwritten, or there is nothing to continue from.
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
        # the processes do so too, but progress is read from these files before they are up
        MetricsWriter(run.metrics(process)).truncate_after(step)
    run.root.mkdir(parents=True, exist_ok=True)
    return step


def check_clean(config: BaseModel, root: Path, options: LaunchOptions) -> None:
    """Raise `ConfigError` where `--clean` would remove what the config reads, as the model or the tasks of a run."""
    for key, text in _texts(config.model_dump(mode="json")) if options.clean else ():
        path = Path(text).absolute()
        if root.absolute() in path.parents and path.exists():
            raise ConfigError(
                key, f"{text} lies in {root}, which --clean would remove; set another output_dir for this run"
            )


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a config, with its dotted key."""
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
            f"{run.root} holds a run already; continue it with --resume, remove it with --clean, or set another "
            "output_dir",
        )
    if options.resume and not occupied:
        raise ConfigError("--resume", f"there is no run in {run.root}; leave --resume away to start one")


def _resume_from(run: RunFolder, path: Path, occupied: bool) -> int:
    """The step of the checkpoint that `path` means; one of another run is taken over into `run`."""
    folder, step = find_checkpoint(path)
    if folder.resolve() == run.checkpoint(step).resolve():
        return step
    if occupied:
        raise ConfigError(
            "output_dir",
            f"{run.root} holds a run already, and {path} is not of it; set another output_dir to go on from there",
        )
    if (
        folder.parent.name == "checkpoints"
        and (weights := RunFolder(folder.parents[1]).weights(step)).is_dir()
    ):
        _take_over(weights, run.weights(step))
    _take_over(folder, run.checkpoint(step))
    return step


def _take_over(source: Path, target: Path) -> None:
    with publish_folder(target) as staging:
        shutil.copytree(source, staging, copy_function=_link, dirs_exist_ok=True)


def find_checkpoint(path: Path) -> tuple[Path, int]:
    """(folder, step) of the complete checkpoint that `path` means: itself, or the newest of a run folder.

    Raises `ConfigError`.
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


def _link(source: str, target: str) -> None:
    """The same file under another name, where the file system can: what was published never changes."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
