"""Braid from Python: whole runs, and the loop in your own hands. `braidrl` exports these names."""

from braidrl.api.prompts import Environment, environment
from braidrl.api.runs import Run, run

__all__ = ["Environment", "Run", "environment", "run"]
