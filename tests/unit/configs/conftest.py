"""Fixtures of the tests of plug-ins."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.packages import Commands, commands


@pytest.fixture(scope="module")
def braid(site: Path) -> Iterator[Commands]:
    """The command line where the package of the module's fixture `site` is installed."""
    with commands(site) as run:
        yield run
