"""The trainable policy: any Hugging Face causal language model whose packed forward is exact."""

import copy
import shutil
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from braidrl.configs.model import ModelConfig
from braidrl.packing import pack
from braidrl.trainer.model import attention
from braidrl.trainer.model.forward import to_device, token_logprobs
from braidrl.transport.types import TrainingSample

EXACT_LAYERS = {"full_attention", "sliding_attention"}
"""Values of a config's `layer_types` that the packed forward computes."""

TOKENIZER_FILES = (
    *("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*"),
    *("*.tiktoken", "*.model", "generation_config.json", "*.py"),
)

PROBE_TOLERANCE = 1e-3
"""Log-probs; far above float32 rounding, far below what a sample that sees its neighbour changes."""


def load_model(
    config: ModelConfig, device: torch.device | str, longest_path: int | None = None
) -> PreTrainedModel:
    """A model with float32 master weights and forest attention, in training mode, without dropout.

    `longest_path` is the longest sample that will be trained, in tokens (the trainer's `seq_len`): a sliding
    window below it is refused now rather than at the first such sample.

    Raises:
        ValueError: the architecture computes something that the packed forward does not reproduce exactly.
            Besides what its config says, a probe compares the two on the loaded weights.
    """
    model = AutoModelForCausalLM.from_pretrained(
        config.path, dtype=torch.float32, trust_remote_code=config.trust_remote_code
    )
    model.to(torch.device(device))  # type: ignore[arg-type]
    return pack_exactly(model, longest_path)


def pack_exactly(model: PreTrainedModel, longest_path: int | None = None) -> PreTrainedModel:
    """Give a plain model forest attention, prove that it computes the same, and return it ready to train."""
    name, config = type(model).__name__, model.config.get_text_config()
    strange = sorted(set(getattr(config, "layer_types", None) or ()) - EXACT_LAYERS)
    if strange:
        raise ValueError(
            f"{name} has {', '.join(strange)} layers; packed training needs full attention in every layer"
        )
    window = _sliding_window(config)
    if window and longest_path and longest_path > window:
        raise ValueError(
            f"{name} attends within a sliding window of {window} tokens, but samples may have "
            f"{longest_path}; packed training computes full attention: set seq_len to at most {window} or "
            f"use another model"
        )
    _disable_dropout(model)
    probe = _probe_samples(config.vocab_size)
    with torch.no_grad():
        expected = torch.cat([_plain_logprobs(model.eval(), sample) for sample in probe])
        model.set_attn_implementation(attention.NAME)
        _check_probe(model, probe, expected)
    return model.train()


def _sliding_window(config: object) -> int | None:
    """The narrowest window that any layer uses."""
    if getattr(config, "use_sliding_window", True) is False:
        return None
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return getattr(config, "sliding_window", None)


def _disable_dropout(model: PreTrainedModel) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _probe_samples(vocabulary: int) -> list[TrainingSample]:
    """Two samples that share three tokens and differ after them."""
    tails = ([11, 5, 23, 2], [17, 3, 29, 7, 13])
    rows = [
        torch.tensor([19, 31, 4, *tail], dtype=torch.int32).remainder(vocabulary).numpy() for tail in tails
    ]
    return [
        TrainingSample(
            token_ids=row,
            mask=row < 0,
            sampling_logprobs=(0 * row).astype("float32"),
            ce_weights=(torch.arange(len(row)) > 0).float().numpy(),
        )
        for row in rows
    ]


def _plain_logprobs(model: PreTrainedModel, sample: TrainingSample) -> Tensor:
    ids = torch.from_numpy(sample.token_ids).long().to(model.device)
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]


def _check_probe(model: PreTrainedModel, probe: list[TrainingSample], expected: Tensor) -> None:
    name = type(model).__name__
    (row,) = pack(probe, max_tokens=64)
    micro = to_device(row, model.device)
    try:
        packed = token_logprobs(model, micro).logprobs
    except TypeError as error:
        raise ValueError(f"{name} does not take packed rows: {error}; use another architecture") from error
    difference = float((packed - expected).abs().max())
    layers, calls = model.config.get_text_config().num_hidden_layers, micro.forest.attention_calls
    if calls != layers or not difference <= PROBE_TOLERANCE:
        raise ValueError(
            f"{name} cannot be trained packed: {calls} of its {layers} layers use forest attention, and "
            f"packed log-probs differ from plain ones by {difference:.2g} (rounding is below "
            f"{PROBE_TOLERANCE}); use an architecture with plain softmax attention in every layer"
        )


def save_model(
    model: PreTrainedModel,
    tokenizer_source: str | Path,
    folder: Path,
    dtype: torch.dtype,
    state: dict[str, Tensor] | None = None,
) -> None:
    """Write a Hugging Face folder: config, safetensors in `dtype`, generation config, tokenizer files.

    `tokenizer_source` is the folder (or hub id) that the model came from. Tied weights stay tied. `folder` is
    written in place: stage it (`publish_folder`) where another process waits for it. `state` holds the whole
    weights of a model whose own are sharded; None: `model.state_dict()`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if Path(tokenizer_source).is_dir():
        for pattern in TOKENIZER_FILES:
            for path in Path(tokenizer_source).glob(pattern):
                shutil.copy(path, folder / path.name)
    else:
        AutoTokenizer.from_pretrained(tokenizer_source).save_pretrained(folder)
    cast: dict[tuple, Tensor] = {}  # by storage, so that tied tensors are seen to be tied
    state = dict(model.state_dict() if state is None else state)
    for key, tensor in state.items():
        if tensor.is_floating_point():
            state[key] = cast.setdefault((tensor.data_ptr(), tensor.shape), tensor.to(dtype))
    model.save_pretrained(folder, state_dict=state)
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    config.save_pretrained(folder)
