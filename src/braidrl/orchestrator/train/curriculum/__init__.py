"""Curricula: which task comes next, and what is learned from what became of it."""

from braidrl.orchestrator.train.curriculum.curriculum import Curriculum
from braidrl.orchestrator.train.curriculum.samplers import StandardSampler, TaskSampler

__all__ = ["Curriculum", "StandardSampler", "TaskSampler"]
