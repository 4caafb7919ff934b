"""Policy versions on their way from the trainer to inference: one published folder a version.

It holds a Hugging Face model, a peft adapter, or what changed since another version (`transport/delta.py`).
"""

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from braidrl.utils.publish import publish_folder, retract_folder
from braidrl.utils.run_folder import RunFolder

DELTA = "delta.json"
"""Says of a published folder which other one it changes."""


def publish_weights(run: RunFolder, version: int, save: Callable[[Path], object]) -> Path:
    """Publish `weights/step_VERSION`. `save` fills a folder that is then renamed, so that no reader sees a part of it.

    Returns the published folder. Raises `FileExistsError` if the version exists, since replicas may be loading it.
    """
    target = run.weights(version)
    if target.exists():
        raise FileExistsError(
            f"policy version {version} is published already ({target}); a version never changes: resume with "
            f"--resume, which forgets the versions after the checkpoint, or choose another output_dir"
        )
    with publish_folder(target) as folder:
        save(folder)
    return target


def forget_weights_before(run: RunFolder, version: int, keep: Collection[int] = ()) -> list[int]:
    """Remove the published versions older than `version`, except what it changes, those in `keep` and the newest.

    Whoever calls it knows that every replica acknowledged `version`. Returns what was removed.
    """
    needed = {folder.name for folder in bases_of(run.weights(version))}
    forgotten = [
        old
        for old in run.published("weights")[:-1]
        if old < version and old not in keep and run.weights(old).name not in needed
    ]
    for old in forgotten:
        retract_folder(run.weights(old))
    return forgotten


def base_of(folder: Path) -> Path | None:
    """The folder that a delta changes; None for one that stands by itself."""
    if not (folder / DELTA).is_file():
        return None
    return folder.parent / json.loads((folder / DELTA).read_text())["base"]


def bases_of(folder: Path) -> Iterator[Path]:
    """Return the base of a delta, the base of that, and so on up to a whole version."""
    while (base := base_of(folder)) is not None:
        yield base
        folder = base
