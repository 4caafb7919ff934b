"""Curriculum of one training source, and the built-in samplers and gates by `type`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

from verifiers.v1 import Episode, Task, Taskset

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.core.faults import tag_of
from braidrl.configs.curriculum.gates import BaseGateConfig
from braidrl.configs.curriculum.samplers import BaseSamplerConfig
from braidrl.configs.orchestrator import CurriculumConfig
from braidrl.configs.plugins import GATE, SAMPLER, Kind
from braidrl.orchestrator.train.curriculum.base import AdmissionGate, Tasks, TaskSampler
from braidrl.orchestrator.train.curriculum.difficulty_pool import DifficultyPoolSampler
from braidrl.orchestrator.train.curriculum.gates import AdvRangeGate, OnlineDifficultyGate
from braidrl.orchestrator.train.curriculum.replay import ReplaySampler
from braidrl.orchestrator.train.curriculum.standard import StandardSampler

ConfigT = TypeVar("ConfigT", bound=BaseConfig)

SAMPLER_CLASSES: dict[str, type[TaskSampler]] = {
    "standard": StandardSampler,
    "difficulty_pool": DifficultyPoolSampler,
    "replay": ReplaySampler,
}
"""Class of each built-in `sampler.type`. Config classes of other packages name their own class."""
GATE_CLASSES: dict[str, type[AdmissionGate]] = {
    "advantage_range": AdvRangeGate,
    "online_difficulty": OnlineDifficultyGate,
}
"""Class of each built-in `gates.NAME.type`. Config classes of other packages name their own class."""


def sampler_class(config: type[BaseSamplerConfig]) -> type[TaskSampler]:
    """Return the sampler class of a config class. Raises `ValueError` if it does not name one."""
    return SAMPLER_CLASSES.get(str(tag_of(config))) or _of_package(SAMPLER, config, TaskSampler)


def gate_class(config: type[BaseGateConfig]) -> type[AdmissionGate]:
    """Return the gate class of a config class. Raises `ValueError` if it does not name one."""
    return GATE_CLASSES.get(str(tag_of(config))) or _of_package(GATE, config, AdmissionGate)


def _of_package(kind: Kind[ConfigT], config: type[ConfigT], base: Any) -> Any:
    """Return the class that a plugin's config class names. Raises `ValueError` unless it is a subclass of `base`."""
    found = kind.implementation(config)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(
            f"{config.__name__}.{kind.target} = {getattr(config, kind.target)!r} is {found!r}, not a "
            f"subclass of {base.__name__}; subclass braidrl.orchestrator.train.curriculum.{base.__name__}"
        )
    return found


class Curriculum:
    """Sampler and gates of one training source, with their state and metrics.

    Args:
        seed: root seed of the sampler's random numbers.
    """

    def __init__(self, config: CurriculumConfig, taskset: Taskset, seed: int = 0) -> None:
        self.tasks = Tasks(taskset)
        self.sampler = sampler_class(type(config.sampler))(config.sampler, self.tasks, seed)
        self.gates = {name: gate_class(type(gate))(gate) for name, gate in config.gates.items()}
        self._judged: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()

    def next_task(self) -> Task:
        """Return the task of the next group."""
        return self.sampler.next_task()

    def task_at(self, number: int) -> Task:
        """Return the task with a number, for a group that was in flight at a checkpoint."""
        return self.tasks.at(number)

    def rejecting(self, group: Sequence[Episode]) -> list[str]:
        """Pass a group to every gate, and return the names of those that reject it.

        Raises `RuntimeError` if a gate raises.
        """
        names = [name for name in self.gates if not self._admits(name, group)]
        self._judged.update(self.gates.keys())
        self._rejected.update(names)
        return names

    def _admits(self, name: str, group: Sequence[Episode]) -> bool:
        try:
            return self.gates[name].admits(group)
        except Exception as error:
            raise RuntimeError(
                f"gate {name!r} ({type(self.gates[name]).__name__}) failed: {type(error).__name__}: {error}; the run "
                "stops, because it would train on unfiltered groups. Fix the gate"
            ) from error

    def observe(self, group: Sequence[Episode]) -> None:
        """Pass a finished group to the sampler, whether or not it trains."""
        self.sampler.observe(group)

    def state_dict(self) -> dict[str, Any]:
        gates = {name: gate.state_dict() for name, gate in self.gates.items()}
        return {"sampler": self.sampler.state_dict(), "gates": gates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`. A gate that is not in it keeps its initial state."""
        self.sampler.load_state_dict(state["sampler"])
        for name, gate in self.gates.items():
            if name in state["gates"]:
                gate.load_state_dict(state["gates"][name])

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the step, logged under `curriculum/ENV/`.

        Sampler metrics have their own names, gate metrics the prefix `gates/NAME/`. Every gate also has `judged` and
        `rejected`, its number of groups since the previous call.
        """
        metrics = self.sampler.metrics()
        for name, gate in self.gates.items():
            counts = {"judged": float(self._judged[name]), "rejected": float(self._rejected[name])}
            metrics |= {f"gates/{name}/{key}": value for key, value in (counts | gate.metrics()).items()}
        self._judged.clear()
        self._rejected.clear()
        return metrics
