"""The served model: loading it, and its forward over the slot cache."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from braidrl.configs.model import ModelConfig
from braidrl.inference.engines.attention import Layout, Span, register
from braidrl.inference.engines.cache import SlotCache
from braidrl.inference.engines.packed_linear import pack_linears


class SlotModel:
    """A Hugging Face causal language model whose keys and values live in a `SlotCache`."""

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
        """Logits [len(rows), V] after the tokens at `rows` of the flat input, all of which enter `cache`."""
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
        """Refuse a model with layers that keep other state than keys and values, or that mask in another way."""
        config = self.module.config.get_text_config()
        others = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
        cache = SlotCache(1, 2)
        self.forward([0, 0], [Span(0, 0, 2)], 0, cache, [1])
        if others or len(cache.layers) != config.num_hidden_layers:
            raise ValueError(
                f"{path}: {len(cache.layers)} of {config.num_hidden_layers} layers keep keys and values"
                f"{f', some are of type {sorted(others)}' if others else ''}; the embedded engine serves models "
                "whose every layer is full or sliding-window attention"
            )


def _eos_ids(module: Any) -> frozenset[int]:
    """Tokens that end a completion by the model's own word."""
    for config in (module.generation_config, module.config):
        eos = getattr(config, "eos_token_id", None)
        if eos is not None:
            return frozenset([eos] if isinstance(eos, int) else eos)
    return frozenset()
