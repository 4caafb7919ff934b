"""Conversion of finished episodes to training samples: algorithms, curricula, flattening, rescoring of records.

Imports `transport`, `utils` and `configs`; neither environments nor the gateway.
Start with `samples.py`, then `algo/`.
"""
