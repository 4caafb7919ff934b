"""Folders of the repository."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
EXAMPLES = REPOSITORY / "examples"
DATA = REPOSITORY / "tests" / "data"
"""Worked cases; see its README."""
SUPPORT = REPOSITORY / "tests" / "support"
"""Helpers of the tests. On the Python path: verifiers loads tasksets and harnesses by the name of their module."""
