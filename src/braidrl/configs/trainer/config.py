"""The trainer process."""

import logging
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.loss import IPOLossConfig
from braidrl.configs.model import ModelConfig
from braidrl.configs.plugins import InstalledLossConfig
from braidrl.configs.trainer.lora import LoRAConfig
from braidrl.configs.trainer.offpolicy import ISCorrectionConfig, M2POConfig, OPSMConfig, ReferenceKLConfig
from braidrl.configs.trainer.optim import OptimConfig, SchedulerConfig
from braidrl.configs.trainer.parallel import ParallelConfig


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


LossAggregation = Literal["token-mean", "seq-mean-token-mean"]


logger = logging.getLogger(__name__)


class CheckpointConfig(BaseConfig):
    """When the whole state of the run is saved. The last step is always saved."""

    interval: int | None = Field(None, ge=1)
    """Save every n-th step; None: only the last."""
    keep_last: int | None = Field(None, ge=1)
    """Keep this many complete checkpoints; None keeps all."""
    keep_every: int | None = Field(None, ge=1)
    """Besides the last ones, keep those whose step is a multiple of this."""

    @model_validator(mode="after")
    def _keeps_what_is_saved(self) -> Self:
        if self.keep_every is None:
            return self
        if self.keep_last is None:
            raise ValueError(
                f"keep_every = {self.keep_every} changes nothing while every checkpoint is kept; set keep_last as well"
            )
        if self.interval is None or self.keep_every % self.interval:
            raise ValueError(
                f"keep_every = {self.keep_every} is no multiple of interval ({self.interval}), so that the steps "
                "that it keeps would not be saved; make it one"
            )
        return self

    def due(self, step: int, max_steps: int) -> bool:
        """Return True if the state after `step` is saved: every `interval` steps, and after the last step."""
        return step == max_steps or (self.interval is not None and step % self.interval == 0)


class TrainerConfig(BaseConfig):
    """`braid trainer`: one optimizer step a batch, algorithm-blind."""

    model: ModelConfig
    """The policy to train."""
    lora: LoRAConfig | None = None
    """Train an adapter of it alone; None: all of it."""
    output_dir: Path = Path("outputs/run")
    """Run folder, shared by the three processes."""
    max_steps: int = Field(100, ge=1)
    """Optimizer steps."""
    seq_len: int = Field(2048, ge=2)
    """Context limit in tokens."""
    seed: int = Field(0, ge=0)
    """Seeds everything that the trainer draws."""
    micro_batch_tokens: int | None = Field(None, ge=2)
    """Tokens of one packed row, which is one forward and backward; None: `seq_len`. Gradients do not depend on it."""
    loss: InstalledLossConfig = IPOLossConfig()
    """The rl loss."""
    loss_agg_mode: LossAggregation = "token-mean"
    """What the rl loss is the mean of: all tokens alike, or trajectories, each of which is the mean of its tokens."""
    mini_batches: int = Field(1, ge=1)
    """Optimizer steps on each batch, each on a part of it."""
    use_rollout_log_probs: bool = False
    """Take the sampler's log-probs for `old`, instead of the trainer's before the step."""
    is_correction: ISCorrectionConfig | None = None
    """Weigh the rl loss by old / mu."""
    m2po: M2POConfig | None = None
    """Leave out the tokens that are most off-policy."""
    opsm: OPSMConfig | None = None
    """Drop bad sequences that the policy has moved away from."""
    entropy_coef: float = 0.0
    """This times the mean entropy is subtracted from the rl loss."""
    reference_kl: ReferenceKLConfig | None = None
    """Keep the policy near a reference."""
    optim: OptimConfig = Field(default_factory=OptimConfig)
    """Optimizer."""
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    """Learning-rate schedule."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """When to save."""
    weights: WeightsConfig = Field(default_factory=WeightsConfig)
    """What a published version holds."""
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    """Processes that train together, and how they share the weights."""
    share_device: bool = False
    """Whether inference has the device between two steps, and everything here waits in CPU memory. `braid rl` takes the
    key at the root."""
    activation_checkpointing: bool = False
    """Recompute layer activations in the backward pass: less memory, about a third more time."""
    activation_offload: bool = False
    """Recompute as `activation_checkpointing` does, and keep what a layer is recomputed from in CPU memory meanwhile:
    for long rows on a GPU."""
    compile: bool = False
    """Compile each layer (`torch.compile`) once for rows of any length: faster steps, after a minute at the start."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; None: what torch chooses (standalone) or a fair share of the cores (`braid rl`)."""
    recorded_tokens: int = Field(16384, ge=0)
    """Tokens of each batch, in whole samples, of which the trainer writes down what it computed (`braid report`)."""
    batch_timeout: float = Field(3600.0, gt=0)
    """Longest wait for the next batch, in seconds."""

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether a step starts with a forward of the whole batch, to know `old` before anything changes.

        With one mini batch and no weight or mask that depends on `old`, it is what the step's own forward gives.
        """
        if self.use_rollout_log_probs:
            return False
        weighed = self.is_correction is not None or self.m2po is not None
        return weighed or (self.compares_with_old and self.mini_batches > 1)

    @property
    def compares_with_old(self) -> bool:
        """Whether anything in the rl component depends on `old`."""
        unbiased = self.reference_kl is not None and self.reference_kl.use_unbiased_kl
        opsm = self.opsm is not None and self.opsm.reference == "old"
        weighed = self.is_correction is not None or self.m2po is not None
        return self.loss.compares_with_old or weighed or opsm or unbiased

    @property
    def shares_reference(self) -> bool:
        """Whether the reference is the trained model under another adapter, rather than a second model."""
        if self.lora is None or self.reference_kl is None:
            return False
        path = self.reference_kl.path
        return path is None or Path(path).absolute() == Path(self.model.path).absolute()

    @model_validator(mode="after")
    def _reference_can_follow(self) -> Self:
        reference = self.reference_kl
        if self.lora is None or reference is None or self.shares_reference:
            return self
        if reference.update_interval:
            raise ValueError(
                f"reference_kl.update_interval = {reference.update_interval} would give the policy's adapter to "
                f"another model, reference_kl.path = {reference.path!r}; remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _adapters_are_whole(self) -> Self:
        if self.lora is not None and self.weights.delta:
            raise ValueError(
                "weights.delta is for whole models, and an adapter is small; remove it, or [lora]"
            )
        if self.lora is not None and self.weights.transfer == "nccl":
            raise ValueError('weights.transfer = "nccl" is for whole models; remove it, or [lora]')
        return self

    @model_validator(mode="after")
    def _one_process_moves(self) -> Self:
        if self.share_device and self.parallel.processes > 1:
            raise ValueError(
                f"parallel.processes is {self.parallel.processes}, but share_device is for one device, which one "
                "process trains on; set it to 1, or give inference devices of its own and remove share_device"
            )
        if self.share_device and self.weights.transfer == "nccl":
            raise ValueError(
                'weights.transfer is "nccl", which sends from device to device while both work, and with share_device '
                'only one has it; set it to "filesystem", or remove share_device'
            )
        return self

    @model_validator(mode="after")
    def _protections_have_two_policies(self) -> Self:
        for name in ("is_correction", "m2po"):
            if getattr(self, name) is not None and self.use_rollout_log_probs:
                raise ValueError(
                    f"{name} compares the trainer's log-probs with the sampler's, and use_rollout_log_probs makes "
                    f"them the same; remove {name}, or set use_rollout_log_probs = false"
                )
        if self.is_correction is not None and not self.loss.compares_with_old:
            raise ValueError(
                f"is_correction weighs by old / mu, and the ratio pi / mu of {self.loss.type} does so already; remove "
                'is_correction, or use loss.type = "grpo" or "gspo"'
            )
        compared = self.opsm is not None and self.opsm.reference == "old" and not self.use_rollout_log_probs
        if compared and self.mini_batches == 1:
            logger.warning(
                "opsm does nothing with one mini batch a step, where the policy is the one before the step; set "
                'trainer.mini_batches to 2 or more, or trainer.opsm.reference = "rollout"'
            )
        return self
