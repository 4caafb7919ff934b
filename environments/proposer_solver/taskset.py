"""The `proposer-solver` taskset: requirements for a proposed problem."""

import random
from collections.abc import Iterator
from typing import Self

import verifiers.v1 as vf
from pydantic import Field, model_validator

from arithmetic import ArithmeticData, ArithmeticTask, Expression
from braid_tasks import DrawnConfig


class ProposerSolverConfig(DrawnConfig):
    """Config of the `proposer-solver` taskset. The splits share no pair of operator and limit."""

    operators: str = Field("+-*", pattern=r"^[-+*]+$")
    """Operators to draw from, uniformly."""
    smallest_limit: int = Field(5, ge=1)
    """Minimum of the limit, which is the largest operand that a source task allows."""
    largest_limit: int = Field(99, ge=1, lt=1_000_000_000)
    """Maximum of the limit."""
    prompt: str = "{operator}{limit}"
    """Template of the proposer's user message. `{operator}` and `{limit}` are replaced by those of the task."""
    solver_prompt: str = "{problem}="
    """Template of the solver's user message. `{problem}` is replaced by the proposed expression."""

    @model_validator(mode="after")
    def _check_limits_and_prompt(self) -> Self:
        if self.largest_limit < self.smallest_limit:
            raise ValueError(
                f"largest_limit ({self.largest_limit}) is smaller than smallest_limit ({self.smallest_limit}); "
                "raise largest_limit or lower smallest_limit"
            )
        if "{problem}" not in self.solver_prompt:
            raise ValueError(
                f"solver_prompt {self.solver_prompt!r} does not contain {{problem}}, so the problem would be missing "
                "from the user message; add it"
            )
        return self


class ProposerData(vf.TaskData):
    """Source task: propose a problem with this operator and operands in [0, limit]."""

    operator: str
    limit: int
    solver_prompt: str
    demonstration: str
    """Random valid problem, for supervised fine-tuning."""

    def problem(self, reply: str) -> Expression | None:
        """Return the proposed problem, such as `7+12`. None if the reply is not exactly one valid problem of this
        task."""
        expression = Expression.parse(reply)
        if expression is None or expression.operators != self.operator:
            return None
        return expression if max(expression.operands) <= self.limit else None


class ProposerTask(vf.Task[ProposerData]):
    """Task graded by the environment after the attempts of the solver."""

    def solver_task(self, expression: Expression) -> ArithmeticTask:
        """Return the proposed problem as a task for the solver."""
        return ArithmeticTask(
            ArithmeticData(
                idx=self.data.idx,
                prompt=self.data.solver_prompt.replace("{problem}", str(expression)),
                problem=str(expression),
                answer=expression.value,
                demonstration=str(expression.value),
            )
        )


class ProposerSolverTaskset(vf.Taskset[ProposerTask, ProposerSolverConfig]):
    """Random operators and limits."""

    def load(self) -> Iterator[ProposerTask]:
        config = self.config
        demonstrator = random.Random(config.seed)
        for operator, limit in config.draw(self._draw, key=lambda drawn: f"{drawn[0]}{drawn[1]}"):
            example = Expression((demonstrator.randint(0, limit), demonstrator.randint(0, limit)), operator)
            data = ProposerData(
                prompt=config.prompt.replace("{operator}", operator).replace("{limit}", str(limit)),
                operator=operator,
                limit=limit,
                solver_prompt=config.solver_prompt,
                demonstration=str(example),
            )
            yield ProposerTask(data, config.task)

    def _draw(self, generator: random.Random) -> tuple[str, int]:
        config = self.config
        limit = generator.randint(config.smallest_limit, config.largest_limit)
        return generator.choice(config.operators), limit
