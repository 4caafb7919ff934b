"""Names of the metrics in docs/metrics.md. (Those of the trainer are checked against the code.)"""

import re

from tests.support.paths import DOCS

_TEXT = (DOCS / "metrics.md").read_text()


def _names() -> set[str]:
    """Return the names in the first column of the tables. `/failed` after `episodes/done` becomes `episodes/failed`."""
    names: set[str] = set()
    for row in _TEXT.splitlines():
        first: list[str] = []
        for code in re.findall(r"`([^`]+)`", row.split(" | ")[0]) if row.startswith("| `") else []:
            if code.startswith("/"):
                kept = max(1, len(first) - code.count("/"))
                names.add("/".join(first[:kept]) + code)
            else:
                first = code.split("/")
                names.add(code)
    return names


NAMES = _names()


def explained(name: str) -> bool:
    """Return True if a metric name is documented. `...` matches the rest of a name."""
    return any(re.fullmatch(re.escape(known).replace(re.escape("..."), ".+"), name) for known in NAMES)
