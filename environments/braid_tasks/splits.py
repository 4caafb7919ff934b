"""Tasks drawn from a seed, in two splits that share nothing."""

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import verifiers.v1 as vf
from pydantic import Field

Split = Literal["train", "heldout"]
HELDOUT_SHARE = 4
"""One key in this many belongs to the held-out split."""
MAX_REFUSED = 10_000
"""Draws of the other split in a row after which the split counts as empty."""

DrawnT = TypeVar("DrawnT")


class DrawnConfig(vf.TasksetConfig):
    """A taskset of random tasks; everything follows from the config."""

    num_tasks: int = Field(1000, ge=1)
    """Tasks in the split."""
    seed: int = 0
    """Draws the tasks."""
    split: Split = "train"
    """The splits share no task, whatever their seeds: the task itself decides to which one it belongs."""

    def draw(
        self, make: Callable[[random.Random], DrawnT], key: Callable[[DrawnT], str], kind: str = ""
    ) -> Iterator[DrawnT]:
        """`num_tasks` things that `make` draws and whose `key` is in the split, in their order; the same one
        may come twice when there are few. Every `kind` has random numbers of its own.

        Raises:
            ValueError: the split seems to be empty.
        """
        generator = random.Random(f"{self.seed} {kind}")
        accepted = refused = 0
        while accepted < self.num_tasks:
            drawn = make(generator)
            if split_of(key(drawn)) == self.split:
                accepted, refused = accepted + 1, 0
                yield drawn
            elif (refused := refused + 1) >= MAX_REFUSED:
                raise ValueError(
                    f"{self.id}: none of {MAX_REFUSED} drawn tasks is in split {self.split!r} (the last one "
                    f"was {key(drawn)!r}); allow more different tasks"
                )


def split_of(key: str) -> Split:
    """The split that a key belongs to: a hash of it decides, one key in `HELDOUT_SHARE` is held out."""
    digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
    return "heldout" if int.from_bytes(digest, "little") % HELDOUT_SHARE == 0 else "train"
