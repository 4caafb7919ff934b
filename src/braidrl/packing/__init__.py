"""Packing of samples into rows, and the denominators of a batch.

Imports `transport`.
Start with `streams.py`, then `rows.py`.
"""

from braidrl.packing.rows import MicroBatch, Segment, pack
from braidrl.packing.streams import COMPONENTS, Normalisers, rl_streams

__all__ = ["COMPONENTS", "MicroBatch", "Normalisers", "Segment", "pack", "rl_streams"]
