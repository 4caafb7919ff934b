"""HTTP routes of the inference server, one module a group of routes.

Imports `inference.engines`.
Start with `generate.py`.
"""
