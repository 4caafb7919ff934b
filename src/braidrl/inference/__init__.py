"""Inference process: an HTTP server with vLLM's routes on the embedded engine, or vLLM itself.

Imports `transport`, `utils` and `configs`.
Start with `server.py`.
"""
