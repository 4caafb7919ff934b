"""Evaluation on held-out tasks with one policy version, within a run and by itself.

Imports `orchestrator.pipeline`, `orchestrator.envs`, `orchestrator.gateway` and `orchestrator.engines`.
Start with `evaluator.py`.
"""

from braidrl.orchestrator.eval.evaluator import Evaluator, LiveEvaluator

__all__ = ["Evaluator", "LiveEvaluator"]
