"""The `proposer-solver` taskset: what a problem must look like."""

import random
from collections.abc import Iterator
from typing import Self

import verifiers.v1 as vf
from pydantic import Field, model_validator

from arithmetic import ArithmeticData, ArithmeticTask, Expression
from braid_tasks import DrawnConfig


class ProposerSolverConfig(DrawnConfig):
    """Which problems are asked for. The splits share no pair of operator and largest operand."""

    operators: str = Field("+-*", pattern=r"^[-+*]+$")
    """Operators that source tasks are drawn from, uniformly."""
    smallest_limit: int = Field(5, ge=1)
    """Lower end of what a source task allows as its largest operand."""
    largest_limit: int = Field(99, ge=1, lt=1_000_000_000)
    """Upper end."""
    prompt: str = "{operator}{limit}"
    """The proposer's user message; `{operator}` and `{limit}` stand for what the source task asks for."""
    solver_prompt: str = "{problem}="
    """The solver's user message; `{problem}` stands for the proposed expression."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if self.largest_limit < self.smallest_limit:
            raise ValueError(
                f"largest_limit ({self.largest_limit}) is smaller than smallest_limit ({self.smallest_limit})"
            )
        if "{problem}" not in self.solver_prompt:
            raise ValueError(f"solver_prompt {self.solver_prompt!r} does not contain {{problem}}")
        return self


class ProposerData(vf.TaskData):
    """One source task: propose a problem with this operator and operands in [0, limit]."""

    operator: str
    limit: int
    solver_prompt: str
    demonstration: str
    """A random valid problem, for supervised training."""

    def problem(self, reply: str) -> Expression | None:
        """The problem that a reply proposes and nothing else, such as `7+12`; None if it is none of this
        source task."""
        expression = Expression.parse(reply)
        if expression is None or expression.operators != self.operator:
            return None
        return expression if max(expression.operands) <= self.limit else None


class ProposerTask(vf.Task[ProposerData]):
    """Graded by the environment when the solvers have tried."""

    def solver_task(self, expression: Expression) -> ArithmeticTask:
        """The proposed problem as a task of the solver's."""
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
