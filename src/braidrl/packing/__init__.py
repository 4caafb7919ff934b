"""Samples to packed rows, and the denominators of a batch."""

from braidrl.packing.rows import MicroBatch, Segment, pack
from braidrl.packing.streams import COMPONENTS, Normalisers, rl_streams

__all__ = ["COMPONENTS", "MicroBatch", "Normalisers", "Segment", "pack", "rl_streams"]
