"""Reinforcement learning on packed batches: preparation, loss components, the optimizer step.

Imports `trainer.model`, `trainer.state`, `trainer.optim` and `trainer.parallel`.
Start with `train.py`, then `step.py`.
"""
