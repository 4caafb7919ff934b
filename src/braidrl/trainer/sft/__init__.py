"""Supervised fine-tuning on demonstrations, with the optimizer step of reinforcement learning.

Imports `trainer.rl` and `trainer.parallel`.
Start with `train.py`.
"""
