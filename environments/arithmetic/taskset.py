"""The `arithmetic` taskset: compute an expression of a chosen level of difficulty."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import verifiers.v1 as vf
from pydantic import Field, model_validator

from arithmetic.expression import Expression
from braid_tasks import DrawnConfig, last_integer


@dataclass(frozen=True)
class Level:
    """Distribution of the expressions of one level of difficulty."""

    operands: int
    largest: int
    """Operands are uniform in [0, largest]."""
    operators: str
    """Operators to choose from, uniformly and independently."""

    def draw(self, generator: random.Random) -> Expression:
        """Draw a random expression of this level."""
        operands = tuple(generator.randint(0, self.largest) for _ in range(self.operands))
        return Expression(operands, "".join(generator.choices(self.operators, k=self.operands - 1)))


LEVELS = {
    1: Level(2, 9, "+"),
    2: Level(2, 9, "+-"),
    3: Level(2, 9, "+-*"),
    4: Level(2, 99, "+-"),
    5: Level(3, 9, "+-*"),
    6: Level(3, 99, "+-*"),
    7: Level(2, 999, "*"),
}
"""Levels of difficulty, from adding two digits to multiplying two numbers of up to three digits."""
MAX_DEMONSTRATION_ERROR = 9
"""Maximum absolute error of a wrong demonstration; the minimum is 1."""


class ArithmeticConfig(DrawnConfig):
    """Config of the `arithmetic` taskset."""

    levels: list[int] = Field([1, 2, 3], min_length=1)
    """Levels to draw tasks from, uniformly: 1 to 7 (`LEVELS`)."""
    prompt: str = "{problem}="
    """Template of the user message. `{problem}` is replaced by the expression."""
    demonstrator_accuracy: float = Field(1.0, ge=0, le=1)
    """Fraction of demonstrations that are correct. The others are off by 1 to 9."""

    @model_validator(mode="after")
    def _check_levels_and_prompt(self) -> Self:
        if unknown := [level for level in self.levels if level not in LEVELS]:
            raise ValueError(
                f"levels contains {unknown}; choose levels between {min(LEVELS)} and {max(LEVELS)}"
            )
        if "{problem}" not in self.prompt:
            raise ValueError(
                f"prompt {self.prompt!r} does not contain {{problem}}, so the expression would be missing from "
                "the user message; add it"
            )
        return self


class ArithmeticData(vf.TaskData):
    """An expression and its value."""

    problem: str
    answer: int
    level: int | None = None
    """Level of the expression. None if it was not drawn from `LEVELS`."""
    demonstration: str
    """Demonstrated reply, for supervised fine-tuning."""


class ArithmeticTask(vf.Task[ArithmeticData]):
    """Task graded by the last integer of the reply."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """Return 1 if the last integer of the reply is the answer, else 0."""
        return float(last_integer(trace.last_reply) == str(self.data.answer))

    @vf.metric
    async def correct_by_level(self, trace: vf.Trace) -> dict[str, float]:
        """Return the reward under the name of the task's level: `level_1` to `level_7`."""
        return {} if self.data.level is None else {f"level_{self.data.level}": await self.correct(trace)}


class ArithmeticTaskset(vf.Taskset[ArithmeticTask, ArithmeticConfig]):
    """Random expressions to compute."""

    def load(self) -> Iterator[ArithmeticTask]:
        demonstrator = random.Random(self.config.seed)
        for level, expression in self._drawn():
            correct = demonstrator.random() < self.config.demonstrator_accuracy
            error = (
                0
                if correct
                else demonstrator.choice((-1, 1)) * demonstrator.randint(1, MAX_DEMONSTRATION_ERROR)
            )
            data = ArithmeticData(
                prompt=self.config.prompt.replace("{problem}", str(expression)),
                problem=str(expression),
                answer=expression.value,
                level=level,
                demonstration=str(expression.value + error),
            )
            yield ArithmeticTask(data, self.config.task)

    def _drawn(self) -> Iterator[tuple[int, Expression]]:
        """Yield `num_tasks` pairs of level and expression.

        The level is drawn before the split of the expression is decided, so each level has the same share in both
        splits.
        """
        config = self.config
        expressions = {
            level: config.draw(LEVELS[level].draw, str, f"level {level}") for level in config.levels
        }
        choose = random.Random(config.seed)
        for _ in range(config.num_tasks):
            level = choose.choice(config.levels)
            yield level, next(expressions[level])
