"""Fixtures of the plugin tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.packages import Commands, commands


@pytest.fixture(scope="module")
def braid(site: Path) -> Iterator[Commands]:
    """Function that runs `braid` in a process in which the package of the fixture `site` is installed."""
    with commands(site) as run:
        yield run
