"""Trainer state on disk and on its way to inference: checkpoints, exports, published weights.

Imports `trainer.model`, `trainer.optim`, `trainer.shards` and `trainer.parallel`.
Start with `checkpoint.py` and `publish.py`.
"""
