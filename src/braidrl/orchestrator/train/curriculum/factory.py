"""The samplers and gates that configurations name."""

from typing import Any, TypeVar

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.core.faults import tag_of
from braidrl.configs.curriculum.gates import BaseGateConfig
from braidrl.configs.curriculum.samplers import BaseSamplerConfig
from braidrl.configs.plugins import GATE, SAMPLER, Kind
from braidrl.orchestrator.train.curriculum.advantage_range import AdvRangeGate
from braidrl.orchestrator.train.curriculum.base import AdmissionGate, TaskSampler
from braidrl.orchestrator.train.curriculum.difficulty_pool import DifficultyPoolSampler
from braidrl.orchestrator.train.curriculum.online_difficulty import OnlineDifficultyGate
from braidrl.orchestrator.train.curriculum.replay import ReplaySampler
from braidrl.orchestrator.train.curriculum.standard import StandardSampler

ConfigT = TypeVar("ConfigT", bound=BaseConfig)

SAMPLER_CLASSES: dict[str, type[TaskSampler]] = {
    "standard": StandardSampler,
    "difficulty_pool": DifficultyPoolSampler,
    "replay": ReplaySampler,
}
"""The class behind each built-in `sampler.type`; other packages name theirs in their config class."""
GATE_CLASSES: dict[str, type[AdmissionGate]] = {
    "advantage_range": AdvRangeGate,
    "online_difficulty": OnlineDifficultyGate,
}
"""The class behind each built-in `gates.NAME.type`; other packages name theirs in their config class."""


def sampler_class(config: type[BaseSamplerConfig]) -> type[TaskSampler]:
    """The sampler that a config class is for. Raises `ValueError` where a package names none."""
    return SAMPLER_CLASSES.get(str(tag_of(config))) or _of_package(SAMPLER, config, TaskSampler)


def gate_class(config: type[BaseGateConfig]) -> type[AdmissionGate]:
    """The gate that a config class is for. Raises `ValueError` where a package names none."""
    return GATE_CLASSES.get(str(tag_of(config))) or _of_package(GATE, config, AdmissionGate)


def _of_package(kind: Kind[ConfigT], config: type[ConfigT], base: Any) -> Any:
    """The class that a package's config class names, which must subclass `base`."""
    found = kind.implementation(config)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(
            f"{config.__name__}.{kind.target} = {getattr(config, kind.target)!r} is {found!r}, which is no "
            f"{base.__name__}; subclass braidrl.orchestrator.train.curriculum.{base.__name__}"
        )
    return found
