"""The task generators of the public package `reasoning-gym`, which must be installed."""

from reasoning_gym_tasks.taskset import (
    ReasoningGymConfig,
    ReasoningGymData,
    ReasoningGymTask,
    ReasoningGymTaskset,
)

__all__ = ["ReasoningGymConfig", "ReasoningGymData", "ReasoningGymTask", "ReasoningGymTaskset"]
