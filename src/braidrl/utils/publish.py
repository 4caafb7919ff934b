"""Publishing by rename: a reader sees a whole file or folder, or none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def publish_folder(target: Path) -> Iterator[Path]:
    """Yield `TARGET.tmp` to fill; on success fsync everything and rename it. A failure leaves no `target`."""
    staging = staging_path(target)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    yield staging
    for path in [*staging.rglob("*"), staging]:
        sync(path)
    staging.rename(target)
    sync(target.parent)


def publish_bytes(target: Path, data: bytes) -> None:
    """Write `data` to `target` so that nobody reads half of it, even after a crash."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = staging_path(target)
    staging.write_bytes(data)
    sync(staging)
    staging.replace(target)
    sync(target.parent)


def retract_folder(target: Path) -> None:
    """Remove a published folder so that nobody reads half of it: it loses its name first."""
    staging = staging_path(target)
    shutil.rmtree(staging, ignore_errors=True)
    target.rename(staging)
    shutil.rmtree(staging)


def staging_path(target: Path) -> Path:
    """Where `target` is written before it is published."""
    return target.with_name(target.name + ".tmp")


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
