"""The `arithmetic` taskset: work out an expression of a chosen level of difficulty."""

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
    """Which expressions a level asks for."""

    operands: int
    largest: int
    """Operands are uniform in [0, largest]."""
    operators: str
    """Each operator is one of these, uniformly."""

    def draw(self, generator: random.Random) -> Expression:
        """A random expression of this level."""
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
"""From adding two digits to multiplying numbers of three."""
WORST_SLIP = 9
"""A wrong demonstration is off by 1 to this much."""


class ArithmeticConfig(DrawnConfig):
    """Which expressions are asked for."""

    levels: list[int] = Field([1, 2, 3], min_length=1)
    """Levels that tasks are drawn from, uniformly: 1 to 7 (`LEVELS`)."""
    prompt: str = "{problem}="
    """The user message; `{problem}` stands for the expression."""
    demonstrator_accuracy: float = Field(1.0, ge=0, le=1)
    """Share of demonstrations that are right; the others are off by 1 to 9."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if unknown := [level for level in self.levels if level not in LEVELS]:
            raise ValueError(f"levels {unknown} do not exist; there are {min(LEVELS)} to {max(LEVELS)}")
        if "{problem}" not in self.prompt:
            raise ValueError(
                f"prompt {self.prompt!r} does not contain {{problem}}, so the model would not see the expression"
            )
        return self


class ArithmeticData(vf.TaskData):
    """One expression and its value."""

    problem: str
    answer: int
    level: int | None = None
    """Its level; None for an expression that no level drew."""
    demonstration: str
    """The demonstrator's reply, for supervised training."""


class ArithmeticTask(vf.Task[ArithmeticData]):
    """Graded by the last integer of the reply."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """1 if the last integer of the reply is the answer, else 0."""
        return float(last_integer(trace.last_reply) == str(self.data.answer))

    @vf.metric
    async def correct_by_level(self, trace: vf.Trace) -> dict[str, float]:
        """The reward once more, under the name of the task's level: `level_1` to `level_7`."""
        return {} if self.data.level is None else {f"level_{self.data.level}": await self.correct(trace)}


class ArithmeticTaskset(vf.Taskset[ArithmeticTask, ArithmeticConfig]):
    """Random expressions, each to be worked out."""

    def load(self) -> Iterator[ArithmeticTask]:
        demonstrator = random.Random(self.config.seed)
        for level, expression in self._drawn():
            right = demonstrator.random() < self.config.demonstrator_accuracy
            slip = 0 if right else demonstrator.choice((-1, 1)) * demonstrator.randint(1, WORST_SLIP)
            data = ArithmeticData(
                prompt=self.config.prompt.replace("{problem}", str(expression)),
                problem=str(expression),
                answer=expression.value,
                level=level,
                demonstration=str(expression.value + slip),
            )
            yield ArithmeticTask(data, self.config.task)

    def _drawn(self) -> Iterator[tuple[int, Expression]]:
        """Levels are drawn before the split is looked at, so that each has its share in both splits."""
        config = self.config
        expressions = {
            level: config.draw(LEVELS[level].draw, str, f"level {level}") for level in config.levels
        }
        choose = random.Random(config.seed)
        for _ in range(config.num_tasks):
            level = choose.choice(config.levels)
            yield level, next(expressions[level])
