"""Curricula: which task comes next, what is learned from what became of it, and what may train. One module a sampler
or gate."""

from braidrl.orchestrator.train.curriculum.advantage_range import AdvRangeGate
from braidrl.orchestrator.train.curriculum.base import AdmissionGate, TaskSampler
from braidrl.orchestrator.train.curriculum.curriculum import Curriculum
from braidrl.orchestrator.train.curriculum.difficulty_pool import DifficultyPoolSampler
from braidrl.orchestrator.train.curriculum.factory import (
    GATE_CLASSES,
    SAMPLER_CLASSES,
    gate_class,
    sampler_class,
)
from braidrl.orchestrator.train.curriculum.online_difficulty import OnlineDifficultyGate
from braidrl.orchestrator.train.curriculum.replay import ReplaySampler
from braidrl.orchestrator.train.curriculum.standard import StandardSampler
from braidrl.orchestrator.train.curriculum.tasks import Tasks

__all__ = [
    "GATE_CLASSES",
    "SAMPLER_CLASSES",
    "AdmissionGate",
    "AdvRangeGate",
    "Curriculum",
    "DifficultyPoolSampler",
    "OnlineDifficultyGate",
    "ReplaySampler",
    "StandardSampler",
    "TaskSampler",
    "Tasks",
    "gate_class",
    "sampler_class",
]
