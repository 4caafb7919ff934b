"""Folders of the repository."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
EXAMPLES = REPOSITORY / "examples"
DATA = REPOSITORY / "tests" / "data"
"""Worked cases; see the README in `tests/data`."""
SUPPORT = REPOSITORY / "tests" / "support"
"""Test helpers. The folder is on the Python path, because verifiers imports tasksets and harnesses by module name."""
