"""Earlier spellings of keys, and the `algorithm` section, which expands into several keys.

Imports `configs.core`, `configs.algorithm` and `configs.trainer`.
Start with `recipe.py`.
"""
