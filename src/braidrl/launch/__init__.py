"""Start of a run: run folder, placement of processes on machines, supervision, restarts and trackers.

Imports `report`, `monitors`, `transport`, `utils` and `configs`; the processes themselves are commands.
Start with `run.py`, then `contract.py`, the contract of launchers.
"""
