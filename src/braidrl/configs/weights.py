"""How policy versions travel from the trainer to inference."""

from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.base import BaseConfig


class WeightsConfig(BaseConfig):
    """`[trainer.weights]`: what a published version holds, and how it travels."""

    delta: bool = False
    """Publish the elements that changed since the version before, in the published type, rather than all of them."""
    full_every: int = Field(20, ge=1)
    """With `delta`, every n-th version is whole all the same, for a replica that restarts; so are the first that a
    trainer publishes and those that a checkpoint goes on from."""
    transfer: Literal["filesystem", "nccl"] = "filesystem"
    """`filesystem`: engines load the published folder. `nccl`: the workers of vLLM receive it from the memory of the
    trainer's first process, all of whose devices must be GPUs; whole folders are written where a checkpoint goes on."""
    transfer_host: str = "127.0.0.1"
    """With `nccl`, the address at which workers and the orchestrator reach the trainer's first process."""

    @model_validator(mode="after")
    def _deltas_are_files(self) -> Self:
        if self.delta and self.transfer == "nccl":
            raise ValueError(
                'weights.delta is for folders, and weights.transfer = "nccl" writes none; remove one'
            )
        return self
