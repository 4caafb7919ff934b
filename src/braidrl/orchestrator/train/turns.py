"""How the turns of a trace hang together: which extend an earlier one token for token, and why others do not.

A *turn* is a message that the model sampled. It *continues* a conversation when its prompt holds an answer already:
then the renderer extends the tokens of that answer (a bridge), or renders the whole history anew (a fallback). Rendered
anew into the very tokens that were sampled, it is as good as extended; else the turn starts a sample of its own.

All of this is read from the message graph. Whether there was a bridge follows from the tokens of the earlier turn and
the messages after it, so the renderer is asked again.
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
    "no_bridge": "its renderer cannot extend a turn; set renderer.name to the model's family",
    "thinking_stripped": "its renderer strips earlier thinking (most do when the user speaks); "
    'renderer.thinking_retention = "all" keeps it',
    "history_changed": "its prompt holds an answer that the model did not give in this conversation: the environment "
    "rewrote, dropped or made up a message",
    "tools_changed": "its prompt declares other tools than the turn before",
    "other_messages": "what stands between it and the last answer is more than results of tools and one user message",
    "rewound": "it goes on from a point whose history was rendered anew in between",
    "refused": "its renderer would not extend the last answer (one that ends inside its thinking, say)",
}
"""Why a turn was rendered anew, in words."""


class Turn(NamedTuple):
    """One turn that continues a conversation."""

    merged: bool
    """Whether it extends an earlier turn token for token, and so trains in one sample with it."""
    fallback: str | None
    """Why its history was rendered anew, a key of `FALLBACKS`; None: its renderer extended the turn before."""


def pool_of(model: str, config: RendererConfig) -> ElasticRendererPool:
    """The renderers that all training clients of this process share, for the tokenizer of a model folder."""
    multiplex = TrainClientConfig.model_fields["multiplex"].default
    return ElasticRendererPool(model, renderer_options(config), multiplex=multiplex)


class TurnReader:
    """Reads the turns of the traces of one source, and says once for each reason why samples break.

    Args:
        source: what the log calls it.
        model: folder of the tokenizer.
    """

    def __init__(self, source: str, model: str, config: RendererConfig) -> None:
        self.source = source
        self.pool = pool_of(model, config)
        self._told: set[str] = set()

    async def read(self, trace: Trace) -> list[Turn]:
        """The turns of `trace` that continue a conversation, in the order in which they were sampled."""
        if trace.num_turns < 2:
            return []
        slot = self.pool.renderers[0] if self.pool.renderers else await self.pool.grow()
        turns = await slot.run(partial(read_turns, trace, slot.renderer))
        for turn in turns:
            if turn.fallback and not turn.merged and turn.fallback not in self._told:
                self._told.add(turn.fallback)
                logger.warning(
                    "source %s: a turn does not extend the one before it and starts a sample of its own: %s "
                    "(counted as trajectories/fallback/%s)",
                    self.source,
                    FALLBACKS[turn.fallback],
                    turn.fallback,
                )
        return turns


def read_turns(trace: Trace, renderer: Renderer) -> list[Turn]:
    """The turns of `trace` that continue a conversation, in the order in which they were sampled.

    Args:
        renderer: of the kind that rendered the trace.
    """
    graph = _Graph(trace.nodes)
    indices = (index for index, node in enumerate(trace.nodes) if node.sampled)
    turns = (_read(graph, index, renderer) for index in indices)
    return [turn for turn in turns if turn is not None]


def _read(graph: "_Graph", index: int, renderer: Renderer) -> Turn | None:
    """The turn at a node; None where it starts a conversation."""
    nodes, own = graph.nodes, graph.path(index)
    last = max((at for at, step in enumerate(own[:-1]) if graph.speaks(step)), default=None)
    if last is None:
        return None
    merged = nodes[own[last]].sampled
    answer = own[last] if merged else graph.original(own[last], before=index)
    if answer is None:
        return Turn(False, "history_changed") if graph.repeats(own) else None
    path = graph.path(answer)
    tools = nodes[path[0]].tools
    if tools != nodes[own[0]].tools:
        return Turn(False, "tools_changed")
    tail = [message_to_wire(nodes[step].message) for step in own[last + 1 : -1]]
    if not _continues(tail):
        return Turn(merged, "other_messages")
    prompt, completion = _split([nodes[step] for step in path])
    declared: Any = [tool_to_wire(tool) for tool in tools] or None
    if not completion or renderer.bridge_to_next_turn(prompt, completion, tail, tools=declared) is None:
        return Turn(merged, _refusal(renderer, tail))
    return Turn(merged, None if merged else "rewound")


class _Graph:
    """The messages of a trace: what was said, and in which tokens."""

    def __init__(self, nodes: Sequence[MessageNode]) -> None:
        self.nodes = nodes

    def speaks(self, index: int) -> bool:
        """Whether a message is the assistant's."""
        return self.nodes[index].message.role == "assistant"

    def path(self, index: int) -> list[int]:
        """The indices from the root to a node."""
        path = [index]
        while (parent := self.nodes[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    @cached_property
    def words(self) -> list[str]:
        """Names each message, whatever its tokens."""
        return [message_hash(node.message) for node in self.nodes]

    @cached_property
    def conversations(self) -> list[int]:
        """Names all that was said up to the end of each message, whatever its tokens."""
        said: list[int] = []
        for node, words in zip(self.nodes, self.words, strict=True):
            said.append(hash((None if node.parent is None else said[node.parent], words)))
        return said

    def original(self, copy: int, before: int) -> int | None:
        """The newest turn before node `before` that gave the answer at `copy` in the same conversation."""
        said = self.conversations
        turns = (index for index in range(before - 1, -1, -1) if self.nodes[index].sampled)
        return next((index for index in turns if said[index] == said[copy]), None)

    def repeats(self, own: Sequence[int]) -> bool:
        """Whether the prompt of the turn at the end of a path holds an answer that the model gave before, or another
        one in its place; if not, the answers in it are examples that a conversation starts with."""
        given = [index for index in range(own[-1]) if self.nodes[index].sampled]
        words = {self.words[index] for index in given}
        answered = {self.nodes[index].parent for index in given}
        answers = [step for step in own[:-1] if self.speaks(step)]
        return any(self.words[step] in words or self.nodes[step].parent in answered for step in answers)


def _split(path: Sequence[MessageNode]) -> tuple[list[int], list[int]]:
    """(prompt, completion) of the call that sampled the last message of a path from the root."""
    tokens = [token for node in path for token in node.token_ids]
    prompt = len(tokens) - sum(path[-1].mask)
    return tokens[:prompt], tokens[prompt:]


def _continues(tail: Sequence[dict[str, Any]]) -> bool:
    """Whether messages are what a bridge extends a turn by: results of tools, then at most one user message."""
    roles = [message.get("role") for message in tail]
    return bool(roles) and roles[-1] in ("tool", "user") and all(role == "tool" for role in roles[:-1])


def _refusal(renderer: Renderer, tail: Sequence[dict[str, Any]]) -> str:
    """Why a renderer built no bridge."""
    if isinstance(renderer, DefaultRenderer):
        return "no_bridge"
    retention = getattr(renderer, "effective_thinking_retention", "all")
    strips = retention == "template" or (retention == "tool_cycle" and tail[-1].get("role") == "user")
    return "thinking_stripped" if strips else "refused"
