"""Commands of `braid`: argument parsing and printing. Each module has one command or a few related ones.

Imports every package except `api` and `testing`. Modules import torch, transformers and verifiers inside functions.
Start with `commands.py`, the list of commands, then `rl.py`.
"""
