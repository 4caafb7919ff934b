"""Tasks from a JSONL file, graded by a user-defined function."""

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
