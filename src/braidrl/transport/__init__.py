"""Data between the processes: training batches and policy versions, as files and over NCCL.

Imports `utils`.
Start with `types.py`, then `rollouts.py` and `weights.py`.
"""
