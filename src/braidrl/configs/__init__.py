"""Configuration of a run as typed data, one pydantic class a block. Imports neither torch, transformers nor verifiers.

Imports no other package of Braid.
Start with `rl.py`, the config of `braid rl`.
"""
