"""Checks behind `braid verify`: gradients across splits, packings and ranks; log-probs of sampler and trainer.

Imports `trainer.rl`, `trainer.model`, `trainer.shards` and `trainer.parallel`.
Start with `checks.py`.
"""
