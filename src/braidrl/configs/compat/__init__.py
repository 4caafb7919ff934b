"""Earlier spellings of keys, and the `algorithm` section that sets several keys at once.

Imports `configs.core`, `configs.algorithm` and `configs.trainer`.
Start with `recipe.py`.
"""
