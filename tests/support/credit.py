"""Credit of traces for tests: one episode a trace, one group a batch."""

from collections.abc import Sequence

from verifiers.v1 import Trace

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.orchestrator.train.algo import make_algorithm
from tests.support.episodes import advantages_of, episode, trace

EXACT = {"abs": 1e-14, "rel": 1e-13}


async def credited(config: BaseAlgorithmConfig, traces: Sequence[Trace]) -> list[float | None]:
    """The advantage of each trace, one episode each, as one group that is a batch."""
    episodes = [episode(item) for item in traces]
    algorithm = make_algorithm(config)
    await algorithm.score_group(episodes)
    await algorithm.score_batch(episodes)
    return advantages_of(episodes)


def conversation(reward: float, output: int, context: int, turns: int) -> Trace:
    """A trace of so many sampled tokens, other tokens, and turns."""
    roles = [("user", context), *[("assistant", 0)] * (turns - 1), ("assistant", output)]
    return trace(reward, roles)
