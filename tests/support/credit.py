"""Credit of traces: each trace is an episode, and all form one group and one batch."""

from collections.abc import Sequence

from verifiers.v1 import Trace

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.orchestrator.train.algo import make_algorithm
from tests.support.episodes import advantages_of, episode, trace

EXACT = {"abs": 1e-14, "rel": 1e-13}


async def credited(config: BaseAlgorithmConfig, traces: Sequence[Trace]) -> list[float | None]:
    """Return the advantage of each trace if each is an episode and all form one group and one batch."""
    episodes = [episode(item) for item in traces]
    algorithm = make_algorithm(config)
    await algorithm.score_group(episodes)
    await algorithm.score_batch(episodes)
    return advantages_of(episodes)


def conversation(reward: float, output: int, context: int, turns: int) -> Trace:
    """Return a trace with the given numbers of sampled tokens, other tokens and turns."""
    roles = [("user", context), *[("assistant", 0)] * (turns - 1), ("assistant", output)]
    return trace(reward, roles)
