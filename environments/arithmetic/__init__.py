"""Sums, differences and products of graded difficulty."""

from arithmetic.expression import Expression
from arithmetic.taskset import (
    LEVELS,
    ArithmeticConfig,
    ArithmeticData,
    ArithmeticTask,
    ArithmeticTaskset,
    Level,
)

__all__ = [
    "LEVELS",
    "ArithmeticConfig",
    "ArithmeticData",
    "ArithmeticTask",
    "ArithmeticTaskset",
    "Expression",
    "Level",
]
