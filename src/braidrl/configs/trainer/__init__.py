"""Config of the trainer process and its blocks: optimizer, adapter, parallelism, off-policy protections.

Imports `configs.core`, `configs.loss`, `configs.model` and `configs.plugins`.
Start with `config.py`.
"""
