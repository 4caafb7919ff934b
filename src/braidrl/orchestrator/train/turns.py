"""Relation between the turns of a trace: which turns extend an earlier one token by token, and why others do not.

A *turn* is a message that the model sampled. It *continues* a conversation if its prompt contains an earlier answer.
The renderer then either extends the tokens of that answer (a bridge), or renders the whole history again (a fallback).
After a fallback, the turn still merges with the earlier one if rendering gives exactly the tokens that were sampled.
Otherwise it starts a new sample.

The message graph does not record which of the two happened. It follows from the tokens of the earlier turn and the
messages after it, so this module calls the renderer's bridge again. See docs/trajectories.md.
"""

import logging
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from renderers import Renderer
from renderers.default import DefaultRenderer
from verifiers.v1 import Trace
from verifiers.v1.clients.train import ElasticRendererPool, tool_to_wire
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.graph import MessageNode, message_hash

from braidrl.configs.model import RendererConfig
from braidrl.utils.renderer import renderer_options

logger = logging.getLogger(__name__)

FALLBACKS = {
    "no_bridge": "the renderer cannot extend a turn; set renderer.name to the model's family",
    "thinking_stripped": "the renderer strips earlier thinking, as most do at a user message; set "
    'renderer.thinking_retention = "all" to keep it',
    "history_changed": "the prompt contains an answer that was not sampled in this conversation; make the environment "
    "return all answers unchanged",
    "tools_changed": "the prompt declares other tools than the previous turn; declare all tools from the start",
    "other_messages": "the last answer is followed by more than tool results and one user message; send a single user "
    "message",
    "rewound": "the turn continues from a point whose history has been rendered again since",
    "refused": "the renderer refused to extend the last answer, for example one that ends inside its thinking",
}
"""Reasons for a fallback, as text for the log."""


class Turn(NamedTuple):
    """Turn that continues a conversation."""

    merged: bool
    """True if it extends an earlier turn token by token, so that both train in one sample."""
    fallback: str | None
    """Reason for a fallback, a key of `FALLBACKS`, or None if the renderer extended the earlier turn."""


def pool_of(model: str, config: RendererConfig) -> ElasticRendererPool:
    """Return the renderer pool of a model's tokenizer, shared by all training clients of this process."""
    multiplex = TrainClientConfig.model_fields["multiplex"].default
    return ElasticRendererPool(model, renderer_options(config), multiplex=multiplex)


class TurnReader:
    """Determines the turns of the traces of one source, and logs each fallback reason once.

    Args:
        source: name of the source, for the log.
        model: folder of the tokenizer.
    """

    def __init__(self, source: str, model: str, config: RendererConfig) -> None:
        self.source = source
        self.pool = pool_of(model, config)
        self._logged: set[str] = set()

    async def read(self, trace: Trace) -> list[Turn]:
        """Return the turns of `trace` that continue a conversation, in sampling order."""
        if trace.num_turns < 2:
            return []
        slot = self.pool.renderers[0] if self.pool.renderers else await self.pool.grow()
        turns = await slot.run(partial(read_turns, trace, slot.renderer))
        for turn in turns:
            if turn.fallback and not turn.merged and turn.fallback not in self._logged:
                self._logged.add(turn.fallback)
                logger.warning(
                    "source %s: a turn does not extend the previous one, so it starts a new sample: %s "
                    "(counted as trajectories/fallback/%s)",
                    self.source,
                    FALLBACKS[turn.fallback],
                    turn.fallback,
                )
        return turns


def read_turns(trace: Trace, renderer: Renderer) -> list[Turn]:
    """Return the turns of `trace` that continue a conversation, in sampling order.

    Args:
        renderer: a renderer with the settings with which the trace was rendered.
    """
    graph = _Graph(trace.nodes)
    indices = (index for index, node in enumerate(trace.nodes) if node.sampled)
    turns = (_read(graph, index, renderer) for index in indices)
    return [turn for turn in turns if turn is not None]


def _read(graph: "_Graph", index: int, renderer: Renderer) -> Turn | None:
    """Return the turn at a node, or None if it starts a conversation."""
    nodes, turn_path = graph.nodes, graph.path(index)
    last = max((at for at, step in enumerate(turn_path[:-1]) if graph.is_answer(step)), default=None)
    if last is None:
        return None
    # If the last answer in the prompt was sampled, its tokens are extended. If not, it is a copy of a sampled answer
    # (rendered again), or of none.
    merged = nodes[turn_path[last]].sampled
    answer = turn_path[last] if merged else graph.original(turn_path[last], before=index)
    if answer is None:
        return Turn(False, "history_changed") if graph.has_earlier_answer(turn_path) else None
    answer_path = graph.path(answer)
    tools = nodes[answer_path[0]].tools
    if tools != nodes[turn_path[0]].tools:
        return Turn(False, "tools_changed")
    tail = [message_to_wire(nodes[step].message) for step in turn_path[last + 1 : -1]]
    if not _can_bridge(tail):
        return Turn(merged, "other_messages")
    prompt, completion = _split([nodes[step] for step in answer_path])
    declared: Any = [tool_to_wire(tool) for tool in tools] or None
    if not completion or renderer.bridge_to_next_turn(prompt, completion, tail, tools=declared) is None:
        return Turn(merged, _refusal_reason(renderer, tail))
    return Turn(merged, None if merged else "rewound")


class _Graph:
    """Message graph of a trace, with the identity of messages and conversations regardless of their tokens."""

    def __init__(self, nodes: Sequence[MessageNode]) -> None:
        self.nodes = nodes

    def is_answer(self, index: int) -> bool:
        """Return True for a message of the assistant."""
        return self.nodes[index].message.role == "assistant"

    def path(self, index: int) -> list[int]:
        """Return the node indices from the root to a node."""
        path = [index]
        while (parent := self.nodes[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    @cached_property
    def message_hashes(self) -> list[str]:
        """Hash of each message, independent of its tokens."""
        return [message_hash(node.message) for node in self.nodes]

    @cached_property
    def conversations(self) -> list[int]:
        """Hash of the messages from the root to each node, independent of their tokens."""
        hashes: list[int] = []
        for node, message in zip(self.nodes, self.message_hashes, strict=True):
            hashes.append(hash((None if node.parent is None else hashes[node.parent], message)))
        return hashes

    def original(self, copy: int, before: int) -> int | None:
        """Return the latest turn before node `before` with the same conversation as `copy`, or None."""
        hashes = self.conversations
        turns = (index for index in range(before - 1, -1, -1) if self.nodes[index].sampled)
        return next((index for index in turns if hashes[index] == hashes[copy]), None)

    def has_earlier_answer(self, path: Sequence[int]) -> bool:
        """Return True if the prompt of the last turn of a path contains an earlier answer of the model or replaces one.

        If not, the answers in the prompt are few-shot examples.
        """
        turns = [index for index in range(path[-1]) if self.nodes[index].sampled]
        sampled = {self.message_hashes[index] for index in turns}
        answered = {self.nodes[index].parent for index in turns}
        answers = [step for step in path[:-1] if self.is_answer(step)]
        return any(
            self.message_hashes[step] in sampled or self.nodes[step].parent in answered for step in answers
        )


def _split(path: Sequence[MessageNode]) -> tuple[list[int], list[int]]:
    """Return the (prompt, completion) tokens of the call that sampled the last message of a path from the root."""
    tokens = [token for node in path for token in node.token_ids]
    prompt = len(tokens) - sum(path[-1].mask)
    return tokens[:prompt], tokens[prompt:]


def _can_bridge(tail: Sequence[dict[str, Any]]) -> bool:
    """Return True if a bridge supports these messages: tool results, followed by at most one user message."""
    roles = [message.get("role") for message in tail]
    return bool(roles) and roles[-1] in ("tool", "user") and all(role == "tool" for role in roles[:-1])


def _refusal_reason(renderer: Renderer, tail: Sequence[dict[str, Any]]) -> str:
    """Return the reason why a renderer did not build a bridge."""
    if isinstance(renderer, DefaultRenderer):
        return "no_bridge"
    retention = getattr(renderer, "effective_thinking_retention", "all")
    strips = retention == "template" or (retention == "tool_cycle" and tail[-1].get("role") == "user")
    return "thinking_stripped" if strips else "refused"
