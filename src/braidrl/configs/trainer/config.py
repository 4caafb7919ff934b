"""Configuration of the trainer process."""

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
    """Contents of a published policy version, and its transfer to inference (`docs/weights.md`)."""

    delta: bool = False
    """Publish only the elements that changed since the previous version, compared in the published dtype."""
    full_every: int = Field(20, ge=1)
    """With `delta`, publish every n-th version as a whole model, from which restarted replicas can load. The first
    version after a start of the trainer and the versions that checkpoints resume from are always whole."""
    transfer: Literal["filesystem", "nccl"] = "filesystem"
    """`filesystem`: inference engines load the published folder. `nccl`: vLLM workers receive the weights from the
    memory of the trainer's first process. All devices must be GPUs, and folders are written only for checkpoints."""
    transfer_host: str = "127.0.0.1"
    """With `nccl`, host name or address at which vLLM workers and the orchestrator reach the trainer's first
    process."""

    @model_validator(mode="after")
    def _check_transfer(self) -> Self:
        if self.delta and self.transfer == "nccl":
            raise ValueError(
                'weights.delta = true requires published folders, but weights.transfer = "nccl" does not write them; '
                "remove one of the two"
            )
        return self


LossAggregation = Literal["token-mean", "seq-mean-token-mean"]


logger = logging.getLogger(__name__)


class CheckpointConfig(BaseConfig):
    """When to save the complete state of the run. The last step is always saved."""

    interval: int | None = Field(None, ge=1)
    """Save every n-th step. None: save only the last step."""
    keep_last: int | None = Field(None, ge=1)
    """Number of most recent complete checkpoints to keep. None: keep all."""
    keep_every: int | None = Field(None, ge=1)
    """In addition to the last ones, keep checkpoints whose step is a multiple of this number."""

    @model_validator(mode="after")
    def _check_retention(self) -> Self:
        if self.keep_every is None:
            return self
        if self.keep_last is None:
            raise ValueError(
                f"keep_every = {self.keep_every} has no effect while all checkpoints are kept; also set keep_last"
            )
        if self.interval is None or self.keep_every % self.interval:
            raise ValueError(
                f"keep_every = {self.keep_every} is not a multiple of interval ({self.interval}), so the steps to keep "
                "would not be saved; set keep_every to a multiple of interval"
            )
        return self

    def due(self, step: int, max_steps: int) -> bool:
        """Return True if the state after `step` is saved: every `interval` steps, and after the last step."""
        return step == max_steps or (self.interval is not None and step % self.interval == 0)


class TrainerConfig(BaseConfig):
    """`braid trainer`: optimizer steps on the batches of the orchestrator, independent of the algorithm."""

    model: ModelConfig
    """The policy to train."""
    lora: LoRAConfig | None = None
    """Train only a LoRA adapter of the model. None: train the whole model."""
    output_dir: Path = Path("outputs/run")
    """Run folder, shared by the three processes."""
    max_steps: int = Field(100, ge=1)
    """Number of training steps, one per batch."""
    seq_len: int = Field(2048, ge=2)
    """Maximum context length in tokens."""
    seed: int = Field(0, ge=0)
    """Seed of all random numbers in the trainer."""
    micro_batch_tokens: int | None = Field(None, ge=2)
    """Maximum number of tokens in a packed row, which is one forward and backward pass. None: `seq_len`. Affects memory
    and speed, not the gradient."""
    loss: InstalledLossConfig = IPOLossConfig()
    """Loss of the `rl` component."""
    loss_agg_mode: LossAggregation = "token-mean"
    """Aggregation of the rl loss: the mean over all tokens, or the mean over trajectories of the mean over their
    tokens."""
    mini_batches: int = Field(1, ge=1)
    """Number of optimizer steps per batch, each on a different part of it."""
    use_rollout_log_probs: bool = False
    """Use the log-probs recorded by the sampler as `old`, instead of those of the trainer before the step."""
    is_correction: ISCorrectionConfig | None = None
    """Importance-sampling correction: weight the rl loss by old / mu. None: off."""
    m2po: M2POConfig | None = None
    """M2PO: drop the most off-policy tokens. None: off."""
    opsm: OPSMConfig | None = None
    """OPSM: drop sequences with a negative advantage that the policy has already moved away from. None: off."""
    entropy_coef: float = 0.0
    """Coefficient of the mean entropy, which is subtracted from the rl loss."""
    reference_kl: ReferenceKLConfig | None = None
    """KL penalty towards a reference model. None: off."""
    optim: OptimConfig = Field(default_factory=OptimConfig)
    """Optimizer."""
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    """Learning-rate schedule."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """When to save checkpoints, and which to keep."""
    weights: WeightsConfig = Field(default_factory=WeightsConfig)
    """Contents and transfer of published weights."""
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    """Number of trainer processes and sharding of the weights."""
    share_device: bool = False
    """Release the device to inference between steps and keep the trainer's state in CPU memory meanwhile. `braid rl`
    copies this key from the root."""
    activation_checkpointing: bool = False
    """Recompute layer activations in the backward pass: less memory, about a third more time."""
    activation_offload: bool = False
    """Activation checkpointing with the saved layer inputs in CPU memory until the backward pass, for long rows on a
    GPU."""
    compile: bool = False
    """Compile each layer with `torch.compile`, once for all row lengths. Steps are faster; compilation takes about a
    minute at the start."""
    threads: int | None = Field(None, ge=1)
    """Number of CPU threads. None: torch's default (standalone), or an equal share of the cores (`braid rl`)."""
    recorded_tokens: int = Field(16384, ge=0)
    """Number of tokens per batch, in whole samples, for which the trainer records its per-token values (`braid
    report`)."""
    batch_timeout: float = Field(3600.0, gt=0)
    """Maximum wait for the next batch, in seconds."""

    @property
    def needs_old_logprobs(self) -> bool:
        """True if a step starts with an extra forward of the whole batch to compute `old`.

        Not needed with a single mini batch if no weight or mask depends on `old`: then `old` is the detached result of
        the step's own forward.
        """
        if self.use_rollout_log_probs:
            return False
        weighted = self.is_correction is not None or self.m2po is not None
        return weighted or (self.compares_with_old and self.mini_batches > 1)

    @property
    def compares_with_old(self) -> bool:
        """True if anything in the rl component depends on `old`."""
        unbiased = self.reference_kl is not None and self.reference_kl.use_unbiased_kl
        opsm = self.opsm is not None and self.opsm.reference == "old"
        weighted = self.is_correction is not None or self.m2po is not None
        return self.loss.compares_with_old or weighted or opsm or unbiased

    @property
    def shares_reference(self) -> bool:
        """True if the reference is the trained model with a different adapter, so that no second model is loaded."""
        if self.lora is None or self.reference_kl is None:
            return False
        path = self.reference_kl.path
        return path is None or Path(path).absolute() == Path(self.model.path).absolute()

    @model_validator(mode="after")
    def _check_reference_update(self) -> Self:
        reference = self.reference_kl
        if self.lora is None or reference is None or self.shares_reference:
            return self
        if reference.update_interval:
            raise ValueError(
                f"reference_kl.update_interval = {reference.update_interval} would apply the policy's adapter to "
                f"another model, reference_kl.path = {reference.path!r}; remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _check_adapter_publishing(self) -> Self:
        if self.lora is not None and self.weights.delta:
            raise ValueError(
                "weights.delta = true cannot be used with [lora], because adapters are always published whole; "
                "remove one of the two"
            )
        if self.lora is not None and self.weights.transfer == "nccl":
            raise ValueError(
                'weights.transfer = "nccl" cannot be used with [lora], because it sends whole models; remove one of '
                "the two"
            )
        return self

    @model_validator(mode="after")
    def _check_shared_device(self) -> Self:
        if self.share_device and self.parallel.processes > 1:
            raise ValueError(
                f"parallel.processes is {self.parallel.processes}, but share_device requires a single device and "
                "trainer process; set parallel.processes = 1, or remove share_device and give inference its own "
                "devices"
            )
        if self.share_device and self.weights.transfer == "nccl":
            raise ValueError(
                'weights.transfer is "nccl", which needs trainer and inference on the device at the same time, but '
                'with share_device they alternate; set weights.transfer = "filesystem", or remove share_device'
            )
        return self

    @model_validator(mode="after")
    def _check_protections(self) -> Self:
        for name in ("is_correction", "m2po"):
            if getattr(self, name) is not None and self.use_rollout_log_probs:
                raise ValueError(
                    f"{name} compares the trainer's log-probs with the sampler's, but use_rollout_log_probs = true "
                    f"makes them equal; remove {name}, or set use_rollout_log_probs = false"
                )
        if self.is_correction is not None and not self.loss.compares_with_old:
            raise ValueError(
                f"is_correction weights by old / mu, which the ratio pi / mu of loss {self.loss.type} already "
                'contains; remove is_correction, or set loss.type = "grpo" or "gspo"'
            )
        compared = self.opsm is not None and self.opsm.reference == "old" and not self.use_rollout_log_probs
        if compared and self.mini_batches == 1:
            logger.warning(
                "opsm has no effect with one mini batch per step, because the policy still equals the one before the "
                'step; set trainer.mini_batches to 2 or more, or trainer.opsm.reference = "rollout"'
            )
        return self
