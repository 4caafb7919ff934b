"""Models: the trainable policy, frozen ones, how messages become tokens and tokens are sampled."""

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig


class ModelConfig(BaseConfig):
    """A Hugging Face causal language model: a local folder or a hub id."""

    path: str
    """Folder (or hub id) with `config.json`, safetensors weights and a tokenizer."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type of forward and backward, and the type in which weights are published and served.
    Master weights, optimizer state, log-probs and every reduction stay float32."""
    trust_remote_code: bool = False
    """Allow the model folder to run its own Python code."""


def one_or_several(value: Any) -> Any:
    """A list may be written as its only element."""
    return [value] if isinstance(value, str) else value


class FrozenModelConfig(BaseConfig):
    """A frozen model behind an OpenAI-compatible endpoint that somebody else runs."""

    name: str
    """Model name that the endpoint serves."""
    base_url: list[str] = Field(min_length=1)
    """One address or several replicas, each ending in `/v1`."""
    api_key_var: str | None = None
    """Environment variable that holds the endpoint's API key; None: no key."""

    _one_or_several = field_validator("base_url", mode="before", json_schema_input_type=str | list[str])(
        one_or_several
    )


class RendererConfig(BaseConfig):
    """How messages become tokens: a renderer of the `renderers` package. Further keys are the family's own options
    (`enable_thinking = false` for `qwen3`); the family checks them."""

    model_config = ConfigDict(extra="allow")

    name: str = "auto"
    """`auto` (by the tokenizer's name), a family such as `qwen3`, `default` (the chat template as it is), `custom`."""
    import_path: str | None = None
    """`my_module.Class` or `path/to/file.py:Class`, with `name = "custom"`."""

    @model_validator(mode="after")
    def _names_a_class(self) -> Self:
        if (self.name == "custom") != (self.import_path is not None):
            raise ValueError(
                f'name = "{self.name}" and import_path = {self.import_path!r} do not go together; a renderer of your '
                'own needs name = "custom" and import_path = "my_module.Class" or "path/to/file.py:Class"'
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
"""Sampling parameters that bend the distribution, and their values that leave it alone. The trainer recomputes plain
softmax log-probs at one temperature, so what trains may not be sampled with anything else."""


def check_unbent(sampling: dict[str, Any]) -> None:
    """Raise `ValueError` for sampling parameters that the trainer could not replay."""
    for name, harmless in UNBENT.items():
        if _number(value := sampling.get(name)) not in harmless:
            raise ValueError(
                f"{name} = {value} cannot be used in training: it changes the distribution that tokens are drawn "
                "from, and the trainer computes log-probs of the whole vocabulary; remove it or write "
                f"{name} = {harmless[0]} (evaluations may use it)"
            )


def _number(value: Any) -> Any:
    """A number that the command line left as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


class TrainSamplingConfig(BaseConfig):
    """How training rollouts are sampled. Truncated sampling (top_p, top_k, min_p) and penalties are absent on purpose:
    the trainer's log-probs cover the whole vocabulary, so a sampler that bends it would bias every ratio."""

    temperature: float = Field(1.0, gt=0)
    """Softmax temperature; the trainer divides its logits by the same number."""
    max_tokens: int = Field(1024, ge=1)
    """Most tokens that one model call may produce (capped by the context limit `seq_len`)."""

    @model_validator(mode="before")
    @classmethod
    def _draws_from_the_whole_vocabulary(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        check_unbent(data)
        return {key: value for key, value in data.items() if key not in UNBENT}


class EvalSamplingConfig(BaseConfig):
    """How evaluation rollouts are sampled."""

    temperature: float = Field(1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus mass; 1 keeps every token."""
    top_k: int = Field(-1, ge=-1)
    """Most likely tokens kept; -1 keeps every token."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Least probability kept, relative to the most likely token's."""
    max_tokens: int = Field(1024, ge=1)
    """Most tokens that one model call may produce."""

    def unusual(self) -> dict[str, Any]:
        """The keys that change something: what to send to a server that may not know all of them."""
        return {key: value for key, value in self.model_dump().items() if value not in UNBENT.get(key, ())}
