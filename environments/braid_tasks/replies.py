"""Reading what a model answered."""

import re

INTEGER = re.compile(r"(?<!\d)-?\d+")


def last_integer(reply: str) -> str | None:
    """The last integer that `reply` writes, as it is written; None if it writes none.

    Text and not a number, so that `007` is not taken for `7` and a reply of ten thousand digits costs
    nothing.
    """
    found = INTEGER.findall(reply)
    return found[-1] if found else None
