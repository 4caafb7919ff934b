"""docs/token.md: it is short, and every module and name in it exists."""

import re

from tests.support.paths import DOCS, REPOSITORY

TEXT = (DOCS / "token.md").read_text()
MODULES = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", TEXT))
LIMIT = 25
"""Maximum number of modules that docs/token.md mentions."""


def test_the_modules_exist_and_are_few() -> None:
    full = {name for name in MODULES if "/" in name}
    assert [name for name in sorted(full) if not (REPOSITORY / "src" / "braidrl" / name).is_file()] == []
    assert {name for name in MODULES - full if not any(path.endswith(f"/{name}") for path in full)} == set()
    assert 10 < len(full) <= LIMIT


def test_the_functions_that_it_names_are_defined_in_them() -> None:
    sources = "\n".join(
        (REPOSITORY / "src" / "braidrl" / name).read_text() for name in MODULES if "/" in name
    )
    for name in ("Orchestrator", "_fill", "SourceEnv", "TrainingSample"):
        assert name in TEXT and re.search(rf"(class|def) {name}\b", sources), name
