"""HTTP routes of the inference server, one module per group of routes.

Imports `inference.engines`.
Start with `generate.py`.
"""
