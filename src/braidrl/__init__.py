"""Braid: every environment keeps its own algorithm, every algorithm speaks one per-token language, one trainer
executes it."""

__version__ = "0.1.0"
