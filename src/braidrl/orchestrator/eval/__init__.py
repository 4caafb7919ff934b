"""Evaluation: playing held-out tasks with one policy version, and what that says of it."""

from braidrl.orchestrator.eval.evaluator import Evaluator, LiveEvaluator

__all__ = ["Evaluator", "LiveEvaluator"]
