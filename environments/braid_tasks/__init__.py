"""Helpers of the bundled tasksets: disjoint splits, parsing of replies, agents with their own model."""

from braid_tasks.replies import last_integer
from braid_tasks.seats import is_pinned
from braid_tasks.splits import DrawnConfig, Split, split_of

__all__ = ["DrawnConfig", "Split", "is_pinned", "last_integer", "split_of"]
