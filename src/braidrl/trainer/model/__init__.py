"""Model of the policy and its exact forward on packed rows; adapters and the frozen reference.

Imports `trainer.parallel`, `trainer.shards` and packages below the trainer.
Start with `policy.py`, then `forward.py`.
"""
