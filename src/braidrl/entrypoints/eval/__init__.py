"""`braid eval`: evaluation of a model, a checkpoint or an endpoint.

Imports `launch`, `orchestrator`, `trainer.state` and packages below.
Start with `command.py`.
"""
