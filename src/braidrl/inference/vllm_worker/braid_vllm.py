"""What the workers of stock vLLM learn from Braid: `--worker-extension-cls braid_vllm.PolicyWorker`.

vLLM's own interpreter imports this file by its folder, so it sees nothing else of Braid.
"""

from typing import Any


class PolicyWorker:
    """Becomes a base of vLLM's worker class; `POST /collective_rpc` calls its methods."""

    model_runner: Any
    reload_weights: Any
    list_loras: Any
    add_lora: Any

    def load_policy(self, weights_path: str) -> None:
        """Load the weights in a folder in place, the output layer included.

        On CPUs vLLM multiplies by packed copies of the weights. Its `reload_weights` packs anew what it has loaded; an
        output layer that is tied with the embeddings has no weights to load, and keeps the copy of the old ones.
        """
        self.reload_weights(weights_path=weights_path)
        for layer in self.model_runner.get_model().modules():
            if "cpu_linear" in vars(layer) and layer.weight.numel() > 0:
                layer.quant_method.process_weights_after_loading(layer)

    def load_adapter(self, lora_path: str) -> None:
        """Put the adapter in a folder in the place of the only one that is served, for requests under way as well."""
        from vllm.lora.request import LoRARequest

        (number,) = self.list_loras()
        self.add_lora(LoRARequest("policy", number, lora_path, load_inplace=True))
