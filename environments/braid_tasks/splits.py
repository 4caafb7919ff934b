"""Random tasks in two disjoint splits."""

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import verifiers.v1 as vf
from pydantic import Field

Split = Literal["train", "heldout"]
HELDOUT_SHARE = 4
"""Inverse of the fraction of keys in the held-out split: one key in 4."""
MAX_REJECTED = 10_000
"""Number of consecutive draws from the other split after which the split counts as empty."""

DrawnT = TypeVar("DrawnT")


class DrawnConfig(vf.TasksetConfig):
    """Base config of tasksets of random tasks. The config determines all tasks."""

    num_tasks: int = Field(1000, ge=1)
    """Number of tasks in the split."""
    seed: int = 0
    """Seed of the tasks."""
    split: Split = "train"
    """Split to draw from. A hash of the task decides its split, so the splits share no task, whatever their seeds."""

    def draw(
        self, make: Callable[[random.Random], DrawnT], key: Callable[[DrawnT], str], kind: str = ""
    ) -> Iterator[DrawnT]:
        """Yield `num_tasks` draws of `make` whose `key` is in the split.

        Draws can repeat if there are few different ones. Each `kind` has its own random number generator.

        Raises:
            ValueError: the split seems to be empty.
        """
        generator = random.Random(f"{self.seed} {kind}")
        accepted = rejected = 0
        while accepted < self.num_tasks:
            drawn = make(generator)
            if split_of(key(drawn)) == self.split:
                accepted, rejected = accepted + 1, 0
                yield drawn
            elif (rejected := rejected + 1) >= MAX_REJECTED:
                raise ValueError(
                    f"{self.id}: none of {MAX_REJECTED} drawn tasks is in split {self.split!r} (the last one "
                    f"was {key(drawn)!r}); allow more different tasks"
                )


def split_of(key: str) -> Split:
    """Return the split of a key, decided by a hash: one key in `HELDOUT_SHARE` is held out."""
    digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
    return "heldout" if int.from_bytes(digest, "little") % HELDOUT_SHARE == 0 else "train"
