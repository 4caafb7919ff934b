"""Policy versions on their way from the trainer to inference: one published Hugging Face folder a version."""

from collections.abc import Callable, Collection
from pathlib import Path

from braidrl.utils.publish import publish_folder, retract_folder
from braidrl.utils.run_folder import RunFolder


def publish_weights(run: RunFolder, version: int, save: Callable[[Path], object]) -> Path:
    """Publish `weights/step_VERSION`: `save` fills a folder, which is then renamed; nobody loads half of it.

    Returns the published folder. Raises `FileExistsError` when the version is there already: replicas may be
    loading it.
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
    """Remove the published versions older than `version`, except those in `keep` and the newest of all.

    Whoever calls it knows that every replica acknowledged `version`. Returns what was removed.
    """
    forgotten = [old for old in run.published("weights")[:-1] if old < version and old not in keep]
    for old in forgotten:
        retract_folder(run.weights(old))
    return forgotten
