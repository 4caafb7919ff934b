"""Builders of verifiers episodes with tokens and log-probs, as a training rollout produces them."""

from collections.abc import Sequence
from typing import Any

from verifiers.v1 import AgentConfig, Episode, TaskData, Trace
from verifiers.v1.episode import GroupInfo
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, Error, Reward, TraceTask
from verifiers.v1.types import AssistantMessage, SystemMessage, ToolMessage, UserMessage

TASK = TraceTask(type="Task", data=TaskData(idx=0, prompt="p"))


def node(role: str, num_tokens: int, parent: int | None) -> MessageNode:
    """Return a message of `num_tokens` tokens. Those of an assistant are sampled, each with log-prob -0.5."""
    sampled = role == "assistant"
    mask = [sampled] * num_tokens
    message: Any = {
        "system": SystemMessage(content="s"),
        "user": UserMessage(content="u"),
        "assistant": AssistantMessage(content="a"),
        "tool": ToolMessage(tool_call_id="c", content="t"),
    }[role]
    return MessageNode(
        parent=parent,
        message=message,
        sampled=sampled,
        token_ids=list(range(10, 10 + num_tokens)),
        mask=mask,
        logprobs=[-0.5] * sum(mask),
    )


def trace(
    reward: float | None = 1.0,
    roles: Sequence[tuple[str, int]] = (("user", 2), ("assistant", 3)),
    *,
    ok: bool = True,
    trainable: bool = True,
    agent: str = "agent",
) -> Trace:
    """Return a finished trace without branches.

    Args:
        reward: reward of the trace; None: it was not scored.
        roles: `(role, number of tokens)` of each message.
        ok: False for a trace that failed.
    """
    nodes = [node(role, count, index - 1 if index else None) for index, (role, count) in enumerate(roles)]
    return Trace(
        task=TASK,
        agent=AgentInfo(config=AgentConfig(), name=agent, trainable=trainable),
        nodes=nodes,
        rewards={"reward": None if reward is None else Reward(score=reward)},
        errors=[] if ok else [Error(type="HarnessError", message="broken")],
        is_completed=True,
        ok=ok,
    )


def episode(*traces: Trace, group: str | None = "g", ok: bool | None = None) -> Episode:
    """Return a finished episode of `traces`, by default one `trace()`.

    Args:
        group: id of the group.
        ok: False for an episode that failed itself; None: it failed if one of its traces did.
    """
    members = list(traces) or [trace()]
    return Episode(
        task=TASK,
        group=None if group is None else GroupInfo(id=group),
        ok=all(item.ok for item in members) if ok is None else ok,
        errors=[] if ok is not False else [Error(type="EnvError", message="finalize failed")],
        traces=members,
    )
