"""Trainer process: exact forward, losses, optimizer steps, checkpoints and published weights.

Imports `packing`, `monitors`, `transport`, `utils` and `configs`.
Start with `rl/train.py`, then `rl/step.py`.
"""
