"""Policy versions as the trainer publishes them: a whole model, or the adapter that alone is trained."""

from pathlib import Path

import torch

from braidrl.configs.trainer import TrainerConfig
from braidrl.trainer.checkpoint import trained_parameters
from braidrl.trainer.model import save_model
from braidrl.trainer.parallel import Parallel, gathered, gathered_state
from braidrl.trainer.policy import Policy
from braidrl.transport.weights import publish_weights
from braidrl.utils.run_folder import RunFolder


class Publisher:
    """Writes the versions of one run. Every process calls it; the first writes."""

    def __init__(self, config: TrainerConfig, policy: Policy, parallel: Parallel) -> None:
        self.config = config
        self.policy = policy
        self.parallel = parallel

    def publish(self, run: RunFolder, version: int) -> None:
        """Publish the weights as policy version `version`."""
        if self.config.lora is None:
            self._publish_model(run, version)
        else:
            self._publish_adapter(run, version)
        self.parallel.barrier()

    def _publish_model(self, run: RunFolder, version: int) -> None:
        source, dtype = self.config.model.path, self.policy.compute_dtype
        state = gathered_state(self.policy.model, self.parallel, dtype)
        if self.parallel.leads:
            publish_weights(
                run, version, lambda folder: save_model(self.policy.model, source, folder, dtype, state)
            )

    def _publish_adapter(self, run: RunFolder, version: int) -> None:
        """float32 as it is trained: it is small, and whoever merges it rounds the sum once."""
        from braidrl.trainer.lora import save_adapter  # only here: peft is an extra

        state: dict[str, torch.Tensor] = {}
        for name, parameter in trained_parameters(self.policy.model).items():
            whole = gathered(parameter.detach())
            if self.parallel.leads:
                state[name] = whole

        def save(folder: Path) -> None:
            save_adapter(self.policy.model, state, folder)

        if self.parallel.leads:
            publish_weights(run, version, save)
