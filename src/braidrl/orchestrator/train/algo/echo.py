"""ECHO: learn from what the environment answers, too."""

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
"""One keep-mask per trainable branch, over that branch's `token_ids`."""


class EchoAlgorithm(GroupRelativeAlgorithm[EchoConfig]):
    """GRPO on sampled tokens, plus cross-entropy at weight alpha_role on the messages of the environment.

    l_t = -alpha_role(t) log pi(y_t) for the tokens of unsampled messages after the first sampled one, along
    each trainable branch: `tool` responses at 0.1 by default. Where the renderer tells content from template,
    only content counts; where it does not, messages after an answer whose thinking it may have stripped are left
    out, because then it does not say where they begin. Sampled tokens are never predicted twice.

    Source: ECHO. In an environment whose answers follow from the agent's actions, predicting them teaches how
    the environment works.

    Assumes that observations are worth predicting (a terminal: yes; pages of a search engine: hardly).

    Degenerate cases: those of GRPO; a group without advantage still trains its observations. A message that
    branches share gets its largest weight.
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
                chosen = zip(content_mask(node), keep[start:end], strict=True)
                merge_weights(node, CE, [alpha if body and kept else 0.0 for body, kept in chosen])
            start, answered = end, answered or node.sampled
            stripped = stripped or _may_be_stripped(node)

    def _keep(self, trace: Trace, branches: list[Branch]) -> list[list[bool]]:
        lengths = [len(branch.token_ids) for branch in branches]
        if self.filter is None:
            return [[True] * length for length in lengths]
        masks = self.filter(trace)
        if [len(mask) for mask in masks] != lengths:
            raise ValueError(
                f"the echo filter returned masks of {[len(mask) for mask in masks]} tokens for trace {trace.id}, whose "
                f"trainable branches have {lengths}; return one mask per trainable branch over its token_ids"
            )
        return masks


def content_mask(node: MessageNode) -> list[bool]:
    """Which tokens of a message are its body; all where the renderer does not say."""
    return node.is_content if len(node.is_content) == len(node.token_ids) else [True] * len(node.token_ids)


def _may_be_stripped(node: MessageNode) -> bool:
    """Whether a message is an answer with thinking that was rendered, not sampled."""
    return not node.sampled and bool(getattr(node.message, "reasoning_content", None))


def load_filter(config: EchoFilterConfig) -> Filter:
    """The user's function with its arguments. Raises `ValueError` when there is none at the path."""
    try:
        return partial(load_function(config.import_path), **config.kwargs)
    except ValueError as error:
        raise ValueError(f"algo.filter.import_path: {error}") from error
