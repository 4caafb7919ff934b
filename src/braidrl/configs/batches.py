"""Batch size, staleness bound and concurrency of the orchestrator (`docs/async.md`)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig


class BatchesConfig(BaseConfig):
    """Keys of `[orchestrator]` for batch size, staleness and concurrency."""

    batch_size: int | None = Field(64, ge=1)
    """Number of training traces per step. None: the batch size is `token_batch_size`."""
    token_batch_size: int | None = Field(None, ge=1)
    """Batch size in tokens including prompts, as an alternative to `batch_size`. A batch has the minimum number of
    traces that reach it."""
    constant_trainer_batch_size: bool = True
    """Replace traces without signal before they count towards the batch. If false, they count, and the batch is
    smaller."""
    max_empty_batches: int = Field(10, ge=1)
    """Stop the run with an explanation after this many consecutive batches' worth of groups without any signal."""
    max_off_policy_steps: int = Field(1, ge=0)
    """Staleness bound: maximum difference between the version being trained and the oldest version that sampled a
    token. 0: strictly on-policy."""
    share_device: bool = False
    """Share one device between inference and trainer: inference sleeps from the completion of a batch until the
    resulting weights are published. Implies strictly on-policy training. `braid rl` copies this key from the root."""
    max_returns: int = Field(2, ge=0)
    """Maximum number of times a stale group is cancelled and its task queued again. After that, the batch that would
    leave it behind waits for it."""
    oversampling_factor: float = Field(1.0, ge=1.0)
    """Work in flight for the next batch as a multiple of the batch size. A batch takes the first traces to finish.
    Above 1, requires `max_off_policy_steps` of at least 1."""
    concurrency: Literal["fixed", "adaptive"] = "fixed"
    """Limit on episodes in flight. `fixed`: `max_concurrent`. `adaptive`: lower while requests queue in the inference
    engine."""
    max_concurrent: int = Field(256, ge=1)
    """Maximum number of episodes in flight."""
    min_concurrent: int = Field(8, ge=1)
    """Lower bound of the adaptive limit."""

    @model_validator(mode="after")
    def _check_batch_size(self) -> Self:
        if self.token_batch_size is None:
            if self.batch_size is None:
                raise ValueError("neither batch_size nor token_batch_size is set; set one of them")
        elif self.batch_size is not None and "batch_size" in self.model_fields_set:
            raise ValueError(
                f"batch_size ({self.batch_size} traces) and token_batch_size ({self.token_batch_size} tokens) are both "
                "set, but a batch has only one size; remove one of them"
            )
        else:
            self.batch_size = None  # it has its default, which `token_batch_size` replaces
        return self

    @model_validator(mode="after")
    def _check_shared_device(self) -> Self:
        if (
            self.share_device
            and self.max_off_policy_steps
            and "max_off_policy_steps" in self.model_fields_set
        ):
            raise ValueError(
                f"max_off_policy_steps is {self.max_off_policy_steps}, but share_device requires 0, because nothing is "
                "sampled while the trainer uses the device; remove max_off_policy_steps, or remove share_device"
            )
        if self.share_device:
            self.max_off_policy_steps = 0
        return self

    @model_validator(mode="after")
    def _check_oversampling(self) -> Self:
        if self.oversampling_factor > 1 and self.max_off_policy_steps == 0:
            raise ValueError(
                f"oversampling_factor is {self.oversampling_factor:g}, but with max_off_policy_steps = 0 a batch waits "
                "for everything in flight and nothing remains for the next batch; set max_off_policy_steps to 1 or "
                "more, or remove oversampling_factor"
            )
        return self

    @model_validator(mode="after")
    def _check_concurrency(self) -> Self:
        if self.concurrency == "adaptive" and self.min_concurrent > self.max_concurrent:
            raise ValueError(
                f"min_concurrent ({self.min_concurrent}) is larger than max_concurrent ({self.max_concurrent}); "
                "lower min_concurrent"
            )
        return self
