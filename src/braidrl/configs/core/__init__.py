"""Foundation of all configs: the strict base class, loading, errors, inheritance, reference and JSON schema.

Imports no other package of Braid.
Start with `base.py` and `load.py`.
"""
