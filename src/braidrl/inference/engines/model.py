"""Served model: loading, and its forward over the slot cache."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from braidrl.configs.model import ModelConfig
from braidrl.inference.engines.attention import Layout, Span, register
from braidrl.inference.engines.cache import SlotCache
from braidrl.inference.engines.packed_linear import pack_linears


class SlotModel:
    """Hugging Face causal language model with its keys and values in a `SlotCache`."""

    def __init__(self, config: ModelConfig) -> None:
        from transformers import AutoModelForCausalLM, PreTrainedModel

        self.module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            config.path,
            dtype=getattr(torch, config.dtype),
            attn_implementation=register(),
            trust_remote_code=config.trust_remote_code,
        ).eval()
        self.vocab_size: int = self.module.get_input_embeddings().num_embeddings
        self.eos_ids = _eos_ids(self.module)
        pack_linears(self.module)
        self._check_layers(config.path)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[int],
        spans: Sequence[Span],
        decoding: int,
        cache: SlotCache,
        rows: Sequence[int],
    ) -> Tensor:
        """Run one forward and return the logits [len(rows), V] at positions `rows` of the flat input.

        The keys and values of all tokens are written to `cache`.
        """
        layout = Layout(cache, spans, decoding)
        output = self.module(
            input_ids=torch.tensor([token_ids]),
            position_ids=layout.positions_T[None],
            use_cache=False,
            slots=layout,
            logits_to_keep=torch.tensor(rows, dtype=torch.long),
        )
        return output.logits[0]

    def _check_layers(self, path: str) -> None:
        """Raise `ValueError` if a layer has state other than keys and values, or an unsupported attention mask."""
        config = self.module.config.get_text_config()
        layer_types = set(getattr(config, "layer_types", None) or ())
        unsupported = layer_types - {"full_attention", "sliding_attention"}
        # A trial forward: each layer that uses the attention interface allocates its part of the cache.
        cache = SlotCache(1, 2)
        self.forward([0, 0], [Span(0, 0, 2)], 0, cache, [1])
        if unsupported or len(cache.layers) != config.num_hidden_layers:
            raise ValueError(
                f"cannot serve {path}: {len(cache.layers)} of {config.num_hidden_layers} layers store keys and values"
                f"{f', unsupported layer types: {sorted(unsupported)}' if unsupported else ''}; in the embedded engine "
                "every layer must be full or sliding-window attention; serve this model with engine = 'vllm'"
            )


def _eos_ids(module: Any) -> frozenset[int]:
    """Return the end-of-sequence token ids of the model's generation config, or else of its config."""
    for config in (module.generation_config, module.config):
        eos = getattr(config, "eos_token_id", None)
        if eos is not None:
            return frozenset([eos] if isinstance(eos, int) else eos)
    return frozenset()
