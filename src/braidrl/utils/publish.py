"""Publishing by rename: a reader sees a whole file or folder, or none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def publish_folder(target: Path) -> Iterator[Path]:
    """Yield `TARGET.tmp` to fill; on success fsync everything and rename it. A failure leaves no `target`."""
    staging = _staging(target)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    yield staging
    for path in [*staging.rglob("*"), staging]:
        _sync(path)
    staging.rename(target)
    _sync(target.parent)


def publish_bytes(target: Path, data: bytes) -> None:
    """Write `data` to `target` so that nobody reads half of it, even after a crash."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = _staging(target)
    staging.write_bytes(data)
    _sync(staging)
    staging.replace(target)
    _sync(target.parent)


def retract_folder(target: Path) -> None:
    """Remove a published folder so that nobody reads half of it: it loses its name first."""
    staging = _staging(target)
    shutil.rmtree(staging, ignore_errors=True)
    target.rename(staging)
    shutil.rmtree(staging)


def _staging(target: Path) -> Path:
    return target.with_name(target.name + ".tmp")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
