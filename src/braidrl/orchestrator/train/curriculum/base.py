"""What a curriculum is made of: a sampler that chooses tasks, gates that admit finished groups."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from verifiers.v1 import Episode, Task

from braidrl.configs.curriculum.gates import BaseGateConfig
from braidrl.configs.curriculum.samplers import BaseSamplerConfig
from braidrl.orchestrator.train.curriculum.tasks import Tasks

SamplerConfigT = TypeVar("SamplerConfigT", bound=BaseSamplerConfig)
GateConfigT = TypeVar("GateConfigT", bound=BaseGateConfig)


class Part:
    """What samplers and gates have in common: state and metrics."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as JSON-serialisable data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""

    def metrics(self) -> dict[str, float]:
        """Scalars of the step, for its log line."""
        return {}


class TaskSampler(Part, ABC, Generic[SamplerConfigT]):
    """Chooses the tasks of one training source and observes what became of them.

    Args:
        tasks: what there is to choose from.
        seed: root of its random numbers.

    Raises:
        ValueError: the taskset is infinite, and the sampler is for finite ones.
    """

    def __init__(self, config: SamplerConfigT, tasks: Tasks, seed: int) -> None:
        if config.finite_only and tasks.all is None:
            raise ValueError(
                f"taskset {tasks.name!r} is infinite, and {type(self).__name__} is for finite ones; let it have a "
                'number of tasks, or use sampler.type = "standard" or "replay"'
            )
        self.config = config
        self.tasks = tasks
        self.seed = seed

    @abstractmethod
    def next_task(self) -> Task:
        """The task of the next group."""

    def observe(self, group: Sequence[Episode]) -> None:
        """See a finished group, whether it trains or not."""

    def random(self, number: int) -> random.Random:
        """The random numbers of the choice of this number, which is to be part of the state: a resumed run then draws
        as if it had not stopped."""
        return random.Random(f"{self.seed}/{number}")


class AdmissionGate(Part, ABC, Generic[GateConfigT]):
    """Decides which finished groups of one training source may train."""

    def __init__(self, config: GateConfigT) -> None:
        self.config = config

    @abstractmethod
    def admits(self, group: Sequence[Episode]) -> bool:
        """Whether a group may train. It has the signal that its algorithm gives before a batch is full."""
