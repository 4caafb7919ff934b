"""Parsing of model replies."""

import re

INTEGER = re.compile(r"(?<!\d)-?\d+")


def last_integer(reply: str) -> str | None:
    """Return the last integer in `reply` as written, or None if there is none.

    The result is text: `007` differs from `7`, and ten thousand digits are never converted to a number.
    """
    found = INTEGER.findall(reply)
    return found[-1] if found else None
