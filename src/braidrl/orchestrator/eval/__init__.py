"""Evaluation of one policy version on held-out tasks, within a run or standalone.

Imports `orchestrator.pipeline`, `orchestrator.envs`, `orchestrator.gateway` and `orchestrator.engines`.
Start with `evaluator.py`.
"""

from braidrl.orchestrator.eval.evaluator import Evaluator, LiveEvaluator

__all__ = ["Evaluator", "LiveEvaluator"]
