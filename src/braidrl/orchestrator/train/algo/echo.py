"""ECHO: GRPO plus imitation of the environment's messages."""

from collections.abc import Callable
from functools import partial

from verifiers.v1 import Episode, Trace
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import Branch

from braidrl.configs.algorithm import EchoConfig
from braidrl.configs.algorithm.echo import EchoFilterConfig
from braidrl.orchestrator.train.algo.grpo import GroupRelativeAlgorithm
from braidrl.orchestrator.train.algo.routing import merge_weights, trainable_traces
from braidrl.orchestrator.train.samples import CE
from braidrl.utils.functions import load_function

Filter = Callable[[Trace], list[list[bool]]]
"""Function that returns one mask per trainable branch, True for each of its `token_ids` to keep."""


class EchoAlgorithm(GroupRelativeAlgorithm[EchoConfig]):
    """GRPO on sampled tokens, plus weighted cross-entropy on messages of the environment.

    The cross-entropy term is l_t = -alpha log pi(y_t), with alpha set by the role of the message (`tool` at 0.1 by
    default). Its targets are the tokens of unsampled messages after the first sampled message of a trainable branch.
    If the renderer marks content tokens, template tokens are excluded. If it does not, messages that follow an answer
    with possibly stripped thinking are excluded, because their tokens cannot be located. Sampled tokens are never
    targets.

    Source: ECHO. Predicting the output of an environment that follows from the agent's actions teaches the policy how
    the environment works.

    Assumes that the output follows from the actions: a terminal is suitable, the pages of a search engine are not.

    Degenerate cases: those of GRPO. A group without advantage still trains its observations. A message shared by
    several branches gets the largest of its weights.
    """

    def __init__(self, config: EchoConfig, clients: object = None) -> None:
        super().__init__(config, clients)
        self.alphas = config.roles.alphas
        self.filter = load_filter(config.filter) if config.filter is not None else None

    async def score_episode(self, episode: Episode) -> None:
        for trace in trainable_traces(episode):
            branches = [branch for branch in trace.branches if branch.trainable]
            for branch, keep in zip(branches, self._keep(trace, branches), strict=True):
                self._weigh(branch, keep)

    def _weigh(self, branch: Branch, keep: list[bool]) -> None:
        start, answered, stripped = 0, False, False
        for node in branch.nodes:
            end = start + len(node.token_ids)
            alpha = self.alphas.get(node.message.role, 0.0)
            if answered and not node.sampled and alpha and (node.is_content or not stripped):
                selected = zip(content_mask(node), keep[start:end], strict=True)
                merge_weights(node, CE, [alpha if content and kept else 0.0 for content, kept in selected])
            start, answered = end, answered or node.sampled
            stripped = stripped or _may_be_stripped(node)

    def _keep(self, trace: Trace, branches: list[Branch]) -> list[list[bool]]:
        lengths = [len(branch.token_ids) for branch in branches]
        if self.filter is None:
            return [[True] * length for length in lengths]
        masks = self.filter(trace)
        if [len(mask) for mask in masks] != lengths:
            raise ValueError(
                f"the echo filter returned masks of {[len(mask) for mask in masks]} tokens for trace {trace.id}, but "
                f"its trainable branches have {lengths}; return one mask per trainable branch over its token_ids"
            )
        return masks


def content_mask(node: MessageNode) -> list[bool]:
    """Return the mask of content tokens of a message. All True if the renderer does not mark content."""
    return node.is_content if len(node.is_content) == len(node.token_ids) else [True] * len(node.token_ids)


def _may_be_stripped(node: MessageNode) -> bool:
    """Return True for an answer with thinking that was rendered, not sampled."""
    return not node.sampled and bool(getattr(node.message, "reasoning_content", None))


def load_filter(config: EchoFilterConfig) -> Filter:
    """Load the user's filter function and bind its arguments. Raises `ValueError` if it cannot be imported."""
    try:
        return partial(load_function(config.import_path), **config.kwargs)
    except ValueError as error:
        raise ValueError(f"algo.filter.import_path: {error}") from error
