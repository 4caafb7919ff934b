"""Models: the trainable policy, frozen models, renderers and sampling."""

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig


class ModelConfig(BaseConfig):
    """A Hugging Face causal language model: a local folder or a hub id."""

    path: str
    """Folder (or hub id) with `config.json`, safetensors weights and a tokenizer."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of forward and backward, and of published and served weights. Master weights, optimizer state, log-probs
    and reductions are always float32."""
    trust_remote_code: bool = False
    """Allow Python code from the model folder to run."""


def one_or_several(value: Any) -> Any:
    """Return a single string as a list of one element, and any other value unchanged."""
    return [value] if isinstance(value, str) else value


class FrozenModelConfig(BaseConfig):
    """A frozen model behind an external OpenAI-compatible endpoint."""

    name: str
    """Name of the model on the server."""
    base_url: list[str] = Field(min_length=1)
    """Address of the server, or of each replica, ending in `/v1`."""
    api_key_var: str | None = None
    """Environment variable that contains the API key of the endpoint. None: no key."""

    _one_or_several = field_validator("base_url", mode="before", json_schema_input_type=str | list[str])(
        one_or_several
    )


class RendererConfig(BaseConfig):
    """Conversion of messages to tokens, with the `renderers` package.

    Other keys are options of the selected family (`enable_thinking = false` for `qwen3`), which validates them.
    """

    model_config = ConfigDict(extra="allow")

    name: str = "auto"
    """`auto` (selected by the name of the tokenizer), a family such as `qwen3`, `default` (the tokenizer's chat
    template) or `custom`."""
    import_path: str | None = None
    """Renderer class, required with `name = "custom"`: `my_module.Class` or `path/to/file.py:Class`."""

    @model_validator(mode="after")
    def _check_import_path(self) -> Self:
        if (self.name == "custom") != (self.import_path is not None):
            raise ValueError(
                f'name = "{self.name}" and import_path = {self.import_path!r} are incompatible; a custom renderer '
                'requires name = "custom" and import_path = "my_module.Class" or "path/to/file.py:Class"'
            )
        return self


UNBENT: dict[str, tuple[Any, ...]] = {
    "top_p": (1, None),
    "top_k": (-1, 0, None),
    "min_p": (0, None),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "repetition_penalty": (1, None),
    "min_tokens": (0, None),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None, []),
    "bad_words": (None, []),
}
"""Sampling parameters that change the distribution, and the values at which they have no effect. The trainer computes
plain softmax log-probs at a single temperature, so training rollouts must be sampled from the same distribution."""


def check_unbent(sampling: dict[str, Any]) -> None:
    """Raise `ValueError` if a sampling parameter changes the distribution, since the trainer cannot reproduce it."""
    for name, neutral in UNBENT.items():
        if _number(value := sampling.get(name)) not in neutral:
            raise ValueError(
                f"{name} = {value} cannot be used in training: it changes the sampling distribution, but the trainer "
                f"computes log-probs over the full vocabulary; remove it or set {name} = {neutral[0]} (evaluations may "
                "use it)"
            )


def _number(value: Any) -> Any:
    """Return a numeric string, as a flag passes it, as a float, and any other value unchanged."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


class TrainSamplingConfig(BaseConfig):
    """Sampling of training rollouts.

    There are no keys for truncated sampling (top_p, top_k, min_p) or penalties: the trainer computes log-probs over the
    full vocabulary, so they would bias every importance ratio.
    """

    temperature: float = Field(1.0, gt=0)
    """Softmax temperature. The trainer divides its logits by the same value."""
    max_tokens: int = Field(1024, ge=1)
    """Maximum number of tokens generated per model call, also limited by the context length `seq_len`."""

    @model_validator(mode="before")
    @classmethod
    def _reject_changed_distributions(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        check_unbent(data)
        return {key: value for key, value in data.items() if key not in UNBENT}


class EvalSamplingConfig(BaseConfig):
    """Sampling of evaluation rollouts."""

    temperature: float = Field(1.0, ge=0)
    """Softmax temperature. 0: greedy decoding."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Probability mass of nucleus sampling. 1: keep all tokens."""
    top_k: int = Field(-1, ge=-1)
    """Number of most likely tokens to keep. -1: keep all tokens."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Minimum probability of a token, relative to that of the most likely token."""
    max_tokens: int = Field(1024, ge=1)
    """Maximum number of tokens generated per model call."""

    def unusual(self) -> dict[str, Any]:
        """Return the keys that have an effect. Others are not sent, because some servers reject unknown parameters."""
        return {key: value for key, value in self.model_dump().items() if value not in UNBENT.get(key, ())}
