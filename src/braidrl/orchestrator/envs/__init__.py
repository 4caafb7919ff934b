"""Environments of a run: training and evaluation sources, their episodes, worker processes.

Imports `orchestrator.gateway` and `orchestrator.train`.
Start with `source.py`.
"""

from braidrl.orchestrator.envs.source import EvalEnv, TrainEnv

__all__ = ["EvalEnv", "TrainEnv"]
