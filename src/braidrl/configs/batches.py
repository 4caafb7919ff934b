"""What a batch is, and how far the orchestrator runs ahead of the trainer to have it in time."""

from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig


class BatchesConfig(BaseConfig):
    """The keys of `[orchestrator]` that are about batches and time (`docs/async.md`)."""

    batch_size: int | None = Field(64, ge=1)
    """Training traces of one optimizer step; None: `token_batch_size` says how large a batch is."""
    token_batch_size: int | None = Field(None, ge=1)
    """Tokens of one optimizer step, prompts included, instead of `batch_size`: as many traces as reach it."""
    constant_trainer_batch_size: bool = True
    """True: traces without signal are replaced before they count. False: they leave a smaller batch."""
    max_empty_batches: int = Field(10, ge=1)
    """Batches' worth of consecutive groups without any signal after which the run stops with an explanation."""
    max_off_policy_steps: int = Field(1, ge=0)
    """Staleness bound: version being trained minus the oldest version that sampled a token. 0 is strictly on-policy."""
    share_device: bool = False
    """Whether inference and trainer have one device by turns: inference sleeps from the moment that a batch is complete
    until the weights that it made are there. Strictly on-policy. `braid rl` takes the key at the root."""
    max_returns: int = Field(2, ge=0)
    """How often work that got too old is started anew; after that the batch that would leave it behind waits for it."""
    oversampling_factor: float = Field(1.0, ge=1.0)
    """More than the bound asks for: so many batches' worth of traces are under way for the next batch, which takes the
    first that are ready. Needs `max_off_policy_steps` of 1 or more."""
    concurrency: Literal["fixed", "adaptive"] = "fixed"
    """`fixed`: up to `max_concurrent` episodes in flight. `adaptive`: fewer while model calls queue in the engine."""
    max_concurrent: int = Field(256, ge=1)
    """Most episodes in flight."""
    min_concurrent: int = Field(8, ge=1)
    """Fewest episodes in flight that `adaptive` goes down to."""

    @model_validator(mode="after")
    def _batch_has_one_size(self) -> Self:
        if self.token_batch_size is None:
            if self.batch_size is None:
                raise ValueError("neither batch_size nor token_batch_size is set; set one of them")
        elif self.batch_size is not None and "batch_size" in self.model_fields_set:
            raise ValueError(
                f"batch_size ({self.batch_size} traces) and token_batch_size ({self.token_batch_size} tokens) are both "
                "set, but a batch has one size; remove one of them"
            )
        else:
            self.batch_size = None
        return self

    @model_validator(mode="after")
    def _turns_are_on_policy(self) -> Self:
        if (
            self.share_device
            and self.max_off_policy_steps
            and "max_off_policy_steps" in self.model_fields_set
        ):
            raise ValueError(
                f"max_off_policy_steps is {self.max_off_policy_steps}, but with share_device nothing is sampled while "
                "the trainer has the device, so that a run is strictly on-policy; set it to 0 or leave it away, or "
                "remove share_device"
            )
        if self.share_device:
            self.max_off_policy_steps = 0
        return self

    @model_validator(mode="after")
    def _surplus_can_wait(self) -> Self:
        if self.oversampling_factor > 1 and self.max_off_policy_steps == 0:
            raise ValueError(
                f"oversampling_factor is {self.oversampling_factor:g}, but with max_off_policy_steps = 0 a batch waits "
                "for everything in flight and nothing is left over for the next; set max_off_policy_steps to 1 or "
                "more, or remove oversampling_factor"
            )
        return self

    @model_validator(mode="after")
    def _concurrency_has_bounds(self) -> Self:
        if self.concurrency == "adaptive" and self.min_concurrent > self.max_concurrent:
            raise ValueError(
                f"min_concurrent ({self.min_concurrent}) is larger than max_concurrent ({self.max_concurrent}); "
                "lower min_concurrent"
            )
        return self
