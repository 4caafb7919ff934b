"""What Braid's own tasksets share: splits that never meet, and how a reply or a seat is read."""

from braid_tasks.replies import last_integer
from braid_tasks.seats import is_pinned
from braid_tasks.splits import DrawnConfig, Split, split_of

__all__ = ["DrawnConfig", "Split", "is_pinned", "last_integer", "split_of"]
