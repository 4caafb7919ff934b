"""Gateway between environments and inference servers: sessions, seeds, policy versions, captured candidates.

Imports `orchestrator.engines` and `orchestrator.train`.
Start with `server.py`, then `call.py`.
"""
