"""Inference servers as the orchestrator sees them: replicas, admission, health, weight updates.

Imports `transport`, `utils` and `configs`.
Start with `pool.py`.
"""
