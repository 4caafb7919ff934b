"""Worker extension for stock vLLM: `--worker-extension-cls braid_vllm.PolicyWorker`.

vLLM's interpreter imports this file with only its folder on the path, so it must not import the rest of Braid.
"""

from typing import Any


class PolicyWorker:
    """Mixin for vLLM's worker class. Its methods are called through `POST /collective_rpc`."""

    model_runner: Any
    reload_weights: Any
    list_loras: Any
    add_lora: Any

    def load_policy(self, weights_path: str) -> None:
        """Load the weights of a folder in place, including the output layer.

        On CPUs vLLM computes with packed copies of the weights, and `reload_weights` repacks only the layers that it
        loads. A tied output layer has no weights in the folder, so it must be repacked here to replace the old copy.
        """
        self.reload_weights(weights_path=weights_path)
        for layer in self.model_runner.get_model().modules():
            if "cpu_linear" in vars(layer) and layer.weight.numel() > 0:
                layer.quant_method.process_weights_after_loading(layer)

    def load_adapter(self, lora_path: str) -> None:
        """Replace the only served adapter with the one in a folder, also for running requests."""
        from vllm.lora.request import LoRARequest

        (number,) = self.list_loras()
        self.add_lora(LoRARequest("policy", number, lora_path, load_inplace=True))
