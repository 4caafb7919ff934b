"""Inference servers of a run: replicas, admission of calls, health checks and weight updates.

Imports `transport`, `utils` and `configs`.
Start with `pool.py`.
"""
