"""An environment from two Python objects: prompts and a reward function."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from braidrl.configs.core.errors import ConfigError
from braidrl.utils.publish import publish_bytes

GIVEN = ("completion", "trace")
"""What a reward function gets beside the fields of its row."""


@dataclass(frozen=True, eq=False)
class Environment:
    """Stands for an environment block in a config: `{"env": environment(prompts, reward)}`."""

    rows: list[dict[str, Any]]
    """A task each: its `prompt`, and further fields for the reward function."""
    reward: Callable[..., Any]
    split: Literal["all", "train", "heldout"]

    def block(self, folder: Path) -> dict[str, Any]:
        """The environment block of what `write` puts into `folder`."""
        task = {"reward": "jsonl.pickled", "reward_kwargs": {"path": str(_reward(folder))}}
        return {"taskset": {"id": "jsonl", "path": str(_prompts(folder)), "split": self.split, "task": task}}

    def write(self, folder: Path) -> None:
        """Put prompts and reward where the processes of a run find them."""
        publish_bytes(_prompts(folder), "".join(json.dumps(row) + "\n" for row in self.rows).encode())
        publish_bytes(_reward(folder), self.pickled())

    def pickled(self) -> bytes:
        """The reward function as a file holds it. Raises `ConfigError` where it cannot leave this process."""
        from jsonl.pickles import dump_reward

        try:
            return dump_reward(self.reward)
        except Exception as error:  # whatever the objects that it holds raise
            raise ConfigError(
                "reward",
                f"{_name(self.reward)} cannot be sent to the processes of a run ({type(error).__name__}: {error}); it "
                "must not hold on to open files, locks or connections: open them inside it",
            ) from error


def environment(
    prompts: Iterable[str | list[dict[str, Any]] | Mapping[str, Any]],
    reward: Callable[..., Any],
    *,
    split: Literal["all", "train", "heldout"] = "all",
) -> Environment:
    """An environment of one-turn tasks, to stand in a config where an environment block stands.

    Args:
        prompts: a task each: a text, a list of chat messages, or a mapping with a `prompt` that is one of the two and
            further fields (all of them JSON). `system_prompt`, `id`, `name` mean what they mean to verifiers.
        reward: a function, plain or async, that returns a finite number. It gets by name what its signature asks for
            (with `**fields`: everything): `prompt`, `completion` (the model's last reply, a text), the fields of its
            row, and `trace` (verifiers' own). It runs in another process. What it raises is the error of that
            episode, which then takes no part in training.
        split: a share of the prompts; a hash of each decides, one in four is `heldout`.

    Raises `ConfigError` for a prompt or a function that cannot be used.
    """
    rows = [_row(prompt, index) for index, prompt in enumerate(prompts)]
    if not rows:
        raise ConfigError("prompts", "there are none; give at least one")
    _check_signature(reward, rows)
    return Environment(rows, reward, split)


def _row(prompt: Any, index: int) -> dict[str, Any]:
    row = dict(prompt) if isinstance(prompt, Mapping) else {"prompt": prompt}
    place = f"prompts[{index}]"
    if not row.get("prompt") or not isinstance(row["prompt"], str | list):
        raise ConfigError(
            place, f"expected a text, a list of chat messages, or a dict with a prompt; got {prompt!r:.200}"
        )
    if taken := [name for name in GIVEN if name in row]:
        raise ConfigError(
            place, f"the field {taken[0]!r} has the name of what a reward function gets; rename it"
        )
    try:
        json.dumps(row)
    except (TypeError, ValueError) as error:
        raise ConfigError(place, f"cannot be written as JSON: {error}") from None
    return row


def _check_signature(reward: Callable[..., Any], rows: list[dict[str, Any]]) -> None:
    """Raise `ConfigError` where the function asks for what a row does not have."""
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "reward", f"{reward!r} is no function whose signature can be read: {error}"
        ) from None
    unnamed = [
        each.name for each in parameters if each.kind is each.POSITIONAL_ONLY and each.default is each.empty
    ]
    free = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    needed = {each.name for each in parameters if each.default is each.empty and each.kind not in free}
    for index, row in enumerate(rows):
        known = [*row, *GIVEN]
        if missing := sorted((needed - set(known)) | set(unnamed)):
            raise ConfigError(
                "reward",
                f"{_name(reward)} asks for {missing[0]!r}, which prompts[{index}] does not have; by name it may ask "
                f"for {', '.join(known)}",
            )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _prompts(folder: Path) -> Path:
    return folder / "prompts.jsonl"


def _reward(folder: Path) -> Path:
    return folder / "reward.pkl"
