"""What every algorithm owes the pipeline, as checks that any test framework can call."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence

from verifiers.v1 import Episode, Trace

from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.rescore import score_batch
from braidrl.orchestrator.train.samples import CE, flatten_trace
from braidrl.testing.episodes import episode, trace

Make = Callable[[], Algorithm]
"""Builds the algorithm that is checked, a fresh one at every call."""
Signal = list[float]
"""Everything that an algorithm wrote on a trace, in order."""

ROLES = [("user", 4), ("assistant", 3), ("tool", 5), ("assistant", 2)]
REWARDS = (1.0, 0.0, 0.25, 0.75)
HUGE = 1e6
"""A reward that shows wherever it is counted."""


def check_algorithm(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Run every check. Call it from a synchronous test.

    Args:
        make: builds the algorithm; one that asks models gets clients of stand-ins here.
        agents: the agents that play an episode, one trace each; a name may stand several times.

    Raises:
        AssertionError: which rule is broken, and how.
    """
    for check in CHECKS:
        check(make, agents)


def check_alignment(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Every stream has one finite value per token that it is about, and nothing else of an episode changes."""
    episodes = _group(REWARDS, agents)
    before = [_untouched(played) for played in episodes]
    algorithm = _score(make, episodes)
    _require(
        [_untouched(played) for played in episodes] == before,
        "an algorithm writes streams on nodes and nothing else",
    )
    for item in _traces(episodes):
        refused = flatten_trace(item, seq_len=10**6).refused
        _require(not refused, f"a trace does not fit its tokens: {', '.join(refused)}")
        for node in item.nodes:
            for name, weights in (node.loss_weights or {}).items():
                _require(all(map(math.isfinite, weights)), f"a {name} weight is not finite: {weights}")
                stray = [
                    weight
                    for weight, sampled in zip(weights, node.mask, strict=True)
                    if weight and not sampled
                ]
                _require(name == CE or not stray, f"tokens that nobody sampled have {name} weights {stray}")
    for name, value in algorithm.metrics().items():
        _require(math.isfinite(value), f"the metric {name} is {value}")


def check_permutation(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """The order in which siblings stand gives nobody another signal (unless `order_matters`)."""
    episodes = _group(REWARDS, agents)
    if make().order_matters:
        return
    shuffled = [played.model_copy(deep=True) for played in episodes[2:] + episodes[:2]][::-1]
    _score(make, episodes)
    _score(make, shuffled)
    _same(_signals(episodes), _signals(shuffled), "the order of a group's episodes changes its signal")


def check_group_of_one(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """A group without siblings, or without episodes, is scored; where credit needs siblings it is zero."""
    _score(make, [])
    episodes = _group((1.0,), agents)
    algorithm = _score(make, episodes)
    _all_finite(episodes)
    if algorithm.config.needs_siblings:
        _require(not any(_advantages(episodes)), f"a group of one has the advantages {_advantages(episodes)}")


def check_failed_siblings(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """A failed episode counts in no baseline and gets no advantage, and who is left alone is a group of one; nor does
    anything fail where all failed."""

    def failed() -> list[Episode]:
        return [episode(*_cast(HUGE, agents, ok=False)), episode(*_cast(HUGE, agents), ok=False)]

    _unmoved_by(make, agents, failed())
    _score(make, failed())
    left = episode(*_cast(1.0, agents))
    algorithm = _score(make, [*failed(), left])
    if algorithm.config.needs_siblings:
        _require(
            not any(_advantages([left])),
            f"the only one that did not fail has the advantages {_advantages([left])}",
        )


def check_unusable_rewards(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """A reward that is missing, infinite or no number counts in no baseline."""
    _unmoved_by(
        make, agents, [episode(*_cast(reward, agents)) for reward in (None, math.nan, math.inf, -math.inf)]
    )


def check_equal_rewards(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Equal attempts get equal signals; where credit is relative to siblings these are exactly zero."""
    episodes = [episode(*_cast(0.1, agents)) for _ in range(7)]
    algorithm = _score(make, episodes)
    _all_finite(episodes)
    if algorithm.config.needs_siblings:
        _require(not any(_advantages(episodes)), f"equal rewards have the advantages {_advantages(episodes)}")
    if not algorithm.order_matters:
        signals = [[_signal(item) for item in played.traces] for played in episodes]
        _require(
            all(signal == signals[0] for signal in signals), f"equal attempts differ in signal: {signals}"
        )


def check_state_round_trip(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """A resumed algorithm goes on as one that never stopped: its state survives JSON."""
    kept, resumed = make(), make()
    _score(lambda: kept, _group(REWARDS, agents))
    resumed.load_state_dict(json.loads(json.dumps(kept.state_dict(), allow_nan=False)))
    first = _group(REWARDS[::-1], agents)
    second = [played.model_copy(deep=True) for played in first]
    _score(lambda: kept, first)
    _score(lambda: resumed, second)
    _same(_signals(first), _signals(second), "an algorithm that was resumed gives another signal")
    _require(kept.state_dict() == resumed.state_dict(), "an algorithm that was resumed ends in another state")


def check_barrier(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """The config class declares what its algorithm waits for, for those who read configs alone."""
    algorithm = make()
    declared, name = algorithm.config.waits_for, type(algorithm.config).__name__
    _require(
        declared == algorithm.barrier,
        f"{name}.barrier is {declared!r}, but the widest hook of {type(algorithm).__name__} is "
        f"score_{algorithm.barrier}",
    )


CHECKS = (
    check_barrier,
    check_alignment,
    check_permutation,
    check_group_of_one,
    check_failed_siblings,
    check_unusable_rewards,
    check_equal_rewards,
    check_state_round_trip,
)
"""Every check; each takes what `check_algorithm` takes."""


# -- groups


def _group(rewards: Sequence[float], agents: Sequence[str]) -> list[Episode]:
    """One episode a reward, of several turns, each of another length."""
    return [
        episode(*_cast(reward, agents, [*ROLES, ("tool", 1 + number), ("assistant", 1 + 2 * number)]))
        for number, reward in enumerate(rewards)
    ]


def _cast(
    reward: float | None,
    agents: Sequence[str],
    roles: Sequence[tuple[str, int]] = tuple(ROLES),
    ok: bool = True,
) -> list[Trace]:
    return [trace(reward, roles, agent=agent, ok=ok) for agent in agents]


def _unmoved_by(make: Make, agents: Sequence[str], others: list[Episode]) -> None:
    """Require the signal of a group to be the same with `others` among it, and these to have no advantage."""
    alone = _group(REWARDS, agents)
    among = [played.model_copy(deep=True) for played in alone]
    _score(make, alone)
    _score(make, [*among[:1], *others, *among[1:]])
    _same(
        _signals(alone),
        _signals(among),
        "siblings that cannot be compared change the signal of those that can",
    )
    _require(
        _advantages(others) == [], f"traces that cannot be compared have the advantages {_advantages(others)}"
    )


def _score(make: Make, episodes: list[Episode]) -> Algorithm:
    """Score a group from set-up to closing."""

    async def whole() -> Algorithm:
        algorithm = make()
        await algorithm.setup()
        try:
            await score_batch(algorithm, episodes)
        finally:
            await algorithm.close()
        return algorithm

    return asyncio.run(whole())


# -- signals


def _traces(episodes: list[Episode]) -> list[Trace]:
    return [item for played in episodes for item in played.traces]


def _signal(item: Trace) -> Signal:
    values: Signal = []
    for node in item.nodes:
        values += node.advantages or []
        values += node.reference_logprobs or []
        for _, weights in sorted((node.loss_weights or {}).items()):
            values += weights
    return values


def _signals(episodes: list[Episode]) -> dict[str, Signal]:
    return {item.id: _signal(item) for item in _traces(episodes)}


def _advantages(episodes: list[Episode]) -> list[float]:
    return [value for item in _traces(episodes) for node in item.nodes for value in node.advantages or []]


def _untouched(played: Episode) -> dict:
    """What an algorithm must leave as it is."""
    return {
        item.id: [
            (node.token_ids, node.mask, node.logprobs, node.message.model_dump()) for node in item.nodes
        ]
        + [{name: reward and reward.value for name, reward in item.rewards.items()}]
        for item in played.model_copy(deep=True).traces
    }


def _all_finite(episodes: list[Episode]) -> None:
    for values in _signals(episodes).values():
        _require(all(map(math.isfinite, values)), f"a signal is not finite: {values}")


def _same(first: dict[str, Signal], second: dict[str, Signal], rule: str) -> None:
    for name, values in first.items():
        others = second[name]
        close = len(values) == len(others) and all(
            math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in zip(values, others)
        )
        _require(close, f"{rule}: {values} and {others}")


def _require(condition: bool, broken: str) -> None:
    if not condition:
        raise AssertionError(broken)
