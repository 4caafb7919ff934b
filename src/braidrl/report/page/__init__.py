"""HTML page of `braid report` and `braid watch`: everything that a run recorded, without network access.

Imports `utils`.
Start with `index.py`, then `write.py` and `server.py`.
"""
