"""Configuration of a run as typed data, with one pydantic class per block.

Imports no other package of Braid, and neither torch nor transformers. verifiers is imported only when environments are
resolved (`environment.py`).
Start with `rl.py`, the config of `braid rl`.
"""
