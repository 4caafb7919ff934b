"""Task generators of the public package `reasoning-gym`, an optional dependency."""

from reasoning_gym_tasks.taskset import (
    ReasoningGymConfig,
    ReasoningGymData,
    ReasoningGymTask,
    ReasoningGymTaskset,
)

__all__ = ["ReasoningGymConfig", "ReasoningGymData", "ReasoningGymTask", "ReasoningGymTaskset"]
