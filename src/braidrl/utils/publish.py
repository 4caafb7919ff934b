"""Atomic publishing by rename: readers see a complete file or folder, or none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def publish_folder(target: Path) -> Iterator[Path]:
    """Yield `TARGET.tmp` as a folder to fill, then fsync and rename it to `target`. On failure there is no `target`."""
    staging = staging_path(target)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    yield staging
    for path in [*staging.rglob("*"), staging]:
        sync(path)
    staging.rename(target)
    sync(target.parent)


def publish_bytes(target: Path, data: bytes) -> None:
    """Write `data` to `target` atomically, also if the machine crashes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = staging_path(target)
    staging.write_bytes(data)
    sync(staging)
    staging.replace(target)
    sync(target.parent)


def retract_folder(target: Path) -> None:
    """Remove a published folder atomically."""
    staging = staging_path(target)
    shutil.rmtree(staging, ignore_errors=True)
    # Rename first: a reader must never find a partly deleted folder under the published name.
    target.rename(staging)
    shutil.rmtree(staging)


def staging_path(target: Path) -> Path:
    """Return the temporary path that `target` is written to before it is published."""
    return target.with_name(target.name + ".tmp")


def sync(path: Path) -> None:
    """Fsync a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
