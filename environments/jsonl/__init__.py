"""Tasks from a file, graded by a function of yours."""

from jsonl.pickles import pickled
from jsonl.rewards import contains, exact
from jsonl.taskset import JsonlConfig, JsonlData, JsonlTask, JsonlTaskConfig, JsonlTaskset

__all__ = [
    "JsonlConfig",
    "JsonlData",
    "JsonlTask",
    "JsonlTaskConfig",
    "JsonlTaskset",
    "contains",
    "exact",
    "pickled",
]
