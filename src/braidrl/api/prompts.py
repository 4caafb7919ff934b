"""Environments made of prompts and a Python reward function."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from braidrl.configs.core.errors import ConfigError
from braidrl.utils.publish import publish_bytes

RESERVED = ("completion", "trace")
"""Arguments of a reward function that are not fields of its row."""


@dataclass(frozen=True, eq=False)
class Environment:
    """Placeholder for an environment block in a config: `{"env": environment(prompts, reward)}`."""

    rows: list[dict[str, Any]]
    """Tasks, each with a `prompt` and optional further fields for the reward function."""
    reward: Callable[..., Any]
    split: Literal["all", "train", "heldout"]

    def block(self, folder: Path) -> dict[str, Any]:
        """Return the environment block that refers to the files `write` creates in `folder`."""
        task = {"reward": "jsonl.pickled", "reward_kwargs": {"path": str(_reward(folder))}}
        return {"taskset": {"id": "jsonl", "path": str(_prompts(folder)), "split": self.split, "task": task}}

    def write(self, folder: Path) -> None:
        """Write prompts and reward function to `folder`."""
        publish_bytes(_prompts(folder), "".join(json.dumps(row) + "\n" for row in self.rows).encode())
        publish_bytes(_reward(folder), self.pickled())

    def pickled(self) -> bytes:
        """Return the pickled reward function. Raises `ConfigError` if it cannot be pickled."""
        from jsonl.pickles import dump_reward

        try:
            return dump_reward(self.reward)
        except Exception as error:  # captured objects may raise anything
            raise ConfigError(
                "reward",
                f"{_name(self.reward)} cannot be sent to the processes of a run ({type(error).__name__}: {error}). It "
                "must not capture open files, locks or connections; open them inside the function",
            ) from error


def environment(
    prompts: Iterable[str | list[dict[str, Any]] | Mapping[str, Any]],
    reward: Callable[..., Any],
    *,
    split: Literal["all", "train", "heldout"] = "all",
) -> Environment:
    """Create an environment of single-turn tasks. Use it in a config in place of an environment block.

    Args:
        prompts: one task per item: a string, a list of chat messages, or a mapping whose `prompt` is one of these. The
            other fields of a mapping must be JSON values. `system_prompt`, `id` and `name` have the same meaning as in
            verifiers.
        reward: sync or async function that returns a finite number. It receives the arguments that its signature names
            (all of them with `**fields`): `prompt`, `completion` (the last reply of the model, a string), the fields
            of its row, and `trace` (the verifiers trace). It runs in another process. If it raises, the episode fails
            and is not trained on.
        split: part of the prompts to use. A hash of the prompt assigns a quarter of them to `heldout`, the rest to
            `train`.

    Raises `ConfigError` for an invalid prompt or reward function.
    """
    rows = [_row(prompt, index) for index, prompt in enumerate(prompts)]
    if not rows:
        raise ConfigError("prompts", "there are none; give at least one prompt")
    _check_signature(reward, rows)
    return Environment(rows, reward, split)


def _row(prompt: Any, index: int) -> dict[str, Any]:
    row = dict(prompt) if isinstance(prompt, Mapping) else {"prompt": prompt}
    place = f"prompts[{index}]"
    if not row.get("prompt") or not isinstance(row["prompt"], str | list):
        raise ConfigError(
            place,
            f"got {prompt!r:.200}; expected a string, a list of chat messages, or a dict with a prompt",
        )
    if taken := [name for name in RESERVED if name in row]:
        raise ConfigError(
            place,
            f"the field name {taken[0]!r} is reserved for an argument of the reward function; rename it",
        )
    try:
        json.dumps(row)
    except (TypeError, ValueError) as error:
        raise ConfigError(place, f"cannot be written as JSON: {error}") from None
    return row


def _check_signature(reward: Callable[..., Any], rows: list[dict[str, Any]]) -> None:
    """Raise `ConfigError` if the function has a required argument that a row does not provide."""
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "reward", f"cannot read the signature of {reward!r} ({error}); give a Python function"
        ) from None
    unnamed = [
        each.name for each in parameters if each.kind is each.POSITIONAL_ONLY and each.default is each.empty
    ]
    free = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    needed = {each.name for each in parameters if each.default is each.empty and each.kind not in free}
    for index, row in enumerate(rows):
        available = [*row, *RESERVED]
        # Arguments are passed by keyword, so a positional-only one can never be provided.
        if missing := sorted((needed - set(available)) | set(unnamed)):
            raise ConfigError(
                "reward",
                f"{_name(reward)} requires the argument {missing[0]!r}, which prompts[{index}] does not provide; "
                f"available keyword arguments: {', '.join(available)}",
            )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _prompts(folder: Path) -> Path:
    return folder / "prompts.jsonl"


def _reward(folder: Path) -> Path:
    return folder / "reward.pkl"
