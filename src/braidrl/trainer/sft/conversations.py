"""Conversations to learn from: a JSONL file, or the demonstrations of a verifiers taskset."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braidrl.configs.sft import SFTDataConfig

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Conversation:
    """One demonstration."""

    name: str
    """Says where it comes from, in errors and records."""
    messages: list[dict[str, Any]]
    """OpenAI chat messages; the assistant's are learnt."""
    tools: list[dict[str, Any]] | None = None
    """OpenAI tool declarations, which are part of the prompt."""


def load_conversations(config: SFTDataConfig) -> Iterable[Conversation]:
    """A list of a finite source's conversations, or an iterator over an infinite taskset's.

    Raises `FileNotFoundError` without the file and `ValueError` for a line or a task that is no conversation.
    """
    if config.path is not None:
        if conversations := list(_from_jsonl(config.path)):
            return conversations
        raise ValueError(f"data.path {config.path} holds no conversation; add one a line")
    assert config.taskset is not None
    return _from_taskset(config.taskset, config.demo_key)


def _from_jsonl(path: Path) -> Iterator[Conversation]:
    if not path.is_file():
        raise FileNotFoundError(f"data.path {path} does not exist; it must be a JSONL file of conversations")
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            yield _parse(f"{path}, line {number}", line)


def _parse(name: str, line: str) -> Conversation:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ValueError(
            f'{name} has no messages; a line is {{"messages": [{{"role": ..., "content": ...}}, ...]}}'
        )
    return Conversation(name, [_message(name, message) for message in messages], record.get("tools"))


def _from_taskset(block: dict[str, Any], demo_key: str) -> Iterable[Conversation]:
    from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

    name = block.get("id")
    if not isinstance(name, str):
        raise ValueError(
            'data.taskset has no id; name an installed taskset, for example data.taskset.id = "reverse-text"'
        )
    taskset = load_taskset(taskset_config_type(name).model_validate(block))
    conversations = (_from_task(f"{name}, task {task.data.idx}", task.data, demo_key) for task in taskset)
    return list(conversations) if taskset.bounded else conversations


def _from_task(name: str, data: Any, demo_key: str) -> Conversation:
    from verifiers.v1.task import TaskData

    demonstration = getattr(data, demo_key, None)
    if demonstration is None:
        fields = sorted(type(data).model_fields.keys() - TaskData.model_fields.keys())
        raise ValueError(
            f"{name} has no {demo_key!r} (its own fields: {fields}); set data.demo_key to its answer's field"
        )
    messages = [
        *_messages(name, data.system_prompt, "system"),
        *_messages(name, data.prompt, "user"),
        *_messages(name, demonstration, "assistant"),
    ]
    return Conversation(name, messages, getattr(data, "tools", None))


def _messages(name: str, value: Any, role: str) -> list[dict[str, Any]]:
    """Messages of a text (by `role`), of one message or of several; none of None."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [_message(name, message) for message in (value if isinstance(value, list) else [value])]


def _message(name: str, message: Any) -> dict[str, Any]:
    """An OpenAI chat message of a dict or of a verifiers message."""
    if isinstance(message, Mapping):
        if message.get("role") not in ROLES:
            raise ValueError(
                f"{name} has a message with role {message.get('role')!r}; roles are {', '.join(ROLES)}"
            )
        return dict(message)
    from verifiers.v1.dialects.chat import message_to_wire

    return message_to_wire(message)
