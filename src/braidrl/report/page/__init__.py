"""HTML page of `braid report` and `braid watch`, which works without network access.

Imports `utils`.
Start with `index.py`, then `write.py` and `server.py`.
"""
