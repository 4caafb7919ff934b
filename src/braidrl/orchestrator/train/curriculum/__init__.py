"""Curricula: selection of the next task, and admission of finished groups to training.

Imports `orchestrator.train.algo` and `configs`.
Start with `base.py`, then `curriculum.py`.
"""

from braidrl.orchestrator.train.curriculum.base import AdmissionGate, Tasks, TaskSampler
from braidrl.orchestrator.train.curriculum.curriculum import (
    GATE_CLASSES,
    SAMPLER_CLASSES,
    Curriculum,
    gate_class,
    sampler_class,
)
from braidrl.orchestrator.train.curriculum.difficulty_pool import DifficultyPoolSampler
from braidrl.orchestrator.train.curriculum.gates import AdvRangeGate, OnlineDifficultyGate
from braidrl.orchestrator.train.curriculum.replay import ReplaySampler
from braidrl.orchestrator.train.curriculum.standard import StandardSampler

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
