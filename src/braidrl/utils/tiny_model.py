"""Tiny randomly initialised language model for tests and demos, created without a download.

The architecture is Qwen3. The tokenizer is byte-level (one token per byte) with Qwen3's control tokens and chat format,
so the model works with everything that supports Qwen3: the `qwen3` renderer, vLLM and transformers.
"""

from pathlib import Path

CONTROL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}"
    "{%- endif -%}"
)


def create_tiny_model(
    path: Path,
    *,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    context: int = 512,
    seed: int = 0,
) -> Path:
    """Write a randomly initialised model and its tokenizer as a Hugging Face folder, and return `path`.

    The MLP width is 3 * `hidden_size`. Input and output embeddings are tied. Equal arguments give equal weights.
    Raises `FileExistsError` if `path` exists.
    """
    import torch
    from transformers import Qwen3ForCausalLM

    from braidrl.utils.publish import publish_folder

    if path.exists():
        raise FileExistsError(f"{path} exists; remove it or choose another folder")
    tokenizer = byte_tokenizer()
    config = _config(tokenizer, hidden_size, num_layers, num_heads, num_kv_heads, context)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    with publish_folder(path) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return path


def _config(tokenizer, hidden_size: int, num_layers: int, num_heads: int, num_kv_heads: int, context: int):
    """Return a Qwen3 config of the given size."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=hidden_size // num_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )


def byte_tokenizer():
    """Return a `PreTrainedTokenizerFast` with 256 byte tokens and Qwen3's control tokens. It round-trips any string."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    # As in Qwen3, tool and thinking tags are single tokens that are not special, so decoding keeps them.
    tokenizer.add_tokens([AddedToken(text, special="|" in text, normalized=False) for text in CONTROL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
