"""`braid verify`: checks of gradients and log-probs before a long run.

Imports `trainer`, `inference`, `orchestrator` and packages below.
Start with `command.py`.
"""
