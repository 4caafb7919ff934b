"""Curricula: which task comes next, what is learned from what became of it, and what may train. One module a sampler
or gate."""

from braidrl.orchestrator.train.curriculum.base import AdmissionGate, TaskSampler
from braidrl.orchestrator.train.curriculum.curriculum import Curriculum
from braidrl.orchestrator.train.curriculum.factory import (
    GATE_CLASSES,
    SAMPLER_CLASSES,
    gate_class,
    sampler_class,
)
from braidrl.orchestrator.train.curriculum.tasks import Tasks

__all__ = [
    "GATE_CLASSES",
    "SAMPLER_CLASSES",
    "AdmissionGate",
    "Curriculum",
    "TaskSampler",
    "Tasks",
    "gate_class",
    "sampler_class",
]
