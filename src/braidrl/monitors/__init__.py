"""Records of a run: metrics, live state, launches and their outcome, machine and package versions.

Imports `utils` and `configs`.
Start with `metrics.py` and `record.py`.
"""
