"""Policy versions as the trainer publishes them: a whole model, what changed of it, or the adapter that is trained."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.trainer.model.loading import save_model
from braidrl.trainer.model.policy import Policy
from braidrl.trainer.parallel import Parallel, gathered, gathered_state
from braidrl.trainer.shards import trained_parameters
from braidrl.trainer.state.transfer import open_sender
from braidrl.transport.delta import save_delta
from braidrl.transport.transfer import write_offer
from braidrl.transport.weights import publish_weights
from braidrl.utils.run_folder import RunFolder


@dataclass(frozen=True)
class Published:
    """Contents of a published folder, on the CPU."""

    name: str
    tensors: dict[str, Tensor]


class Publisher:
    """Writes the versions of one run. Every process calls it; the first writes."""

    def __init__(self, config: TrainerConfig, policy: Policy, parallel: Parallel) -> None:
        self.config = config
        self.policy = policy
        self.parallel = parallel
        self._last: Published | None = None
        """The version before, where the next one may be what changed since."""
        self._sender = None
        if config.weights.transfer == "nccl" and parallel.leads:
            self._sender = open_sender(config.weights.transfer_host, parallel.device)

    def publish(self, run: RunFolder, version: int, whole: bool = True) -> None:
        """Publish the weights as policy version `version`; `whole` even where the config asks for
        deltas, or for versions that stay in memory."""
        if self.config.lora is None:
            self._publish_model(run, version, whole)
        else:
            self._publish_adapter(run, version)
        self.parallel.barrier()

    def _publish_model(self, run: RunFolder, version: int, whole: bool) -> None:
        source, dtype = self.config.model.path, self.policy.compute_dtype
        state = gathered_state(self.policy.model, self.parallel, dtype)
        if not self.parallel.leads:
            return
        if self._sender is not None and not whole:
            offer = self._sender.offer(version, distinct(state, dtype))
            publish_weights(run, version, lambda folder: write_offer(folder, offer))
            return
        last, deltas = self._last, self.config.weights
        if deltas.delta:
            self._last = Published(run.weights(version).name, distinct(state, dtype))
        if last is None or self._last is None or whole or version % deltas.full_every == 0:
            publish_weights(
                run, version, lambda folder: save_model(self.policy.model, source, folder, dtype, state)
            )
        else:
            new = self._last.tensors
            publish_weights(run, version, lambda folder: save_delta(last.tensors, new, last.name, folder))

    def _publish_adapter(self, run: RunFolder, version: int) -> None:
        """float32 as it is trained: it is small, and whoever merges it rounds the sum once."""
        from braidrl.trainer.model.lora import save_adapter  # only here: peft is an extra

        state: dict[str, Tensor] = {}
        for name, parameter in trained_parameters(self.policy.model).items():
            whole = gathered(parameter.detach())
            if self.parallel.leads:
                state[name] = whole

        def save(folder: Path) -> None:
            save_adapter(self.policy.model, state, folder)

        if self.parallel.leads:
            publish_weights(run, version, save)


def distinct(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Copies in the published type on the CPU, of tied tensors one."""
    found: dict[tuple[int, torch.Size], tuple[str, Tensor]] = {}
    for name, tensor in state.items():
        found.setdefault((tensor.data_ptr(), tensor.shape), (name, tensor))
    return {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None, copy=True).contiguous()
        for name, tensor in found.values()
    }
