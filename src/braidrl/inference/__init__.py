"""Inference process: a server with vLLM's routes on an embedded engine, and the start of vLLM itself.

Imports `transport`, `utils` and `configs`.
Start with `server.py`.
"""
