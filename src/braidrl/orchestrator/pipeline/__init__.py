"""From dispatched tasks to training batches: groups, credit, staleness, records and metrics.

Imports `orchestrator.envs`, `orchestrator.gateway` and `orchestrator.train`.
Start with `dispatcher.py`, then `sink.py`.
"""
