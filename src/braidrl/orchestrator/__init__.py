"""Orchestrator process: environments, algorithms and curricula, the gateway, and batches for the trainer.

Imports `report`, `monitors`, `transport`, `utils` and `configs`.
Start with `orchestrator.py`.
"""
