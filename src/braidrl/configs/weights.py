"""How policy versions travel from the trainer to inference."""

from pydantic import Field

from braidrl.configs.base import BaseConfig


class WeightsConfig(BaseConfig):
    """`[trainer.weights]`: what a published version holds."""

    delta: bool = False
    """Publish the elements that changed since the version before, in the published type, rather than all of them."""
    full_every: int = Field(20, ge=1)
    """With `delta`, every n-th version is whole all the same, for a replica that restarts; so are the first that a
    trainer publishes and those that a checkpoint goes on from."""
