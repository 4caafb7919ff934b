"""Weights that go from the trainer's memory straight to the workers of an inference server.

A version that is offered so has a published folder like any other, with `transfer.json` in the place of weights. Its
lifetime is that of the folder.
"""

from pathlib import Path

import msgspec

OFFER = "transfer.json"


class Offer(msgspec.Struct):
    """Contents of `transfer.json`: the address to request the weights from, and the tensors in the order of sending."""

    url: str
    """Address of the trainer's first process: `POST /join`, `POST /send`."""
    token: str
    """Token that callers must present (`Authorization: Bearer ...`)."""
    names: list[str]
    """Names of the tensors, as in a Hugging Face checkpoint."""
    dtype_names: list[str]
    """`bfloat16`, ..."""
    shapes: list[list[int]]

    @property
    def update_info(self) -> dict[str, list]:
        """vLLM's `update_info`: what its workers are to expect."""
        return {"names": self.names, "dtype_names": self.dtype_names, "shapes": self.shapes}


class Join(msgspec.Struct):
    """`POST /join`: a server whose workers are to receive weights."""

    replica: str
    """Address of the server."""
    workers: int
    """Number of its worker processes over all parallel ranks."""
    fresh: bool
    """True if it has just started and lost any earlier group."""


class Rendezvous(msgspec.Struct):
    """vLLM's `init_info`: where the workers meet the trainer, which is rank 0."""

    master_address: str
    master_port: int
    world_size: int
    rank_offset: int = 1
    packed: bool = False


class Joined(msgspec.Struct):
    """The answer: where to meet, or None where they have met."""

    place: Rendezvous | None


class Send(msgspec.Struct):
    """`POST /send`: broadcast a version to the workers of a server; answered when it has been."""

    replica: str
    version: int


def write_offer(folder: Path, offer: Offer) -> None:
    (folder / OFFER).write_bytes(msgspec.json.encode(offer))


def read_offer(folder: Path) -> Offer | None:
    """The offer of a version; None where its folder holds the weights themselves."""
    path = folder / OFFER
    return msgspec.json.decode(path.read_bytes(), type=Offer) if path.exists() else None
