"""Records of a run: metrics, live state, start and end, machine and packages.

Imports `utils` and `configs`.
Start with `metrics.py` and `record.py`.
"""
