"""Embedded engine (PyTorch, slot cache, continuous batching), and the command line of vLLM.

Imports `transport`, `utils` and `configs`.
Start with `torch.py`.
"""
