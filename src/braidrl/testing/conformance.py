"""Checks of the contract between an algorithm and the pipeline, for any test framework."""

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
"""Builds a new instance of the algorithm under test at every call."""
Signal = list[float]
"""All values that an algorithm wrote to a trace: advantages, reference log-probs and loss weights in node order."""

ROLES = [("user", 4), ("assistant", 3), ("tool", 5), ("assistant", 2)]
REWARDS = (1.0, 0.0, 0.25, 0.75)
OUTLIER = 1e6
"""Reward that visibly changes every baseline in which it is counted."""


def check_algorithm(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Run every check. Must be called from a synchronous test.

    Args:
        make: builds the algorithm. Give an algorithm that queries models stub clients here.
        agents: agents of an episode, one trace each. Names may repeat.

    Raises:
        AssertionError: a rule is broken. The message names the rule and the values seen.
    """
    for check in CHECKS:
        check(make, agents)


def check_alignment(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Require one finite value per token in every stream, and no other change to an episode."""
    episodes = _group(REWARDS, agents)
    before = [_immutable_fields(each) for each in episodes]
    algorithm = _score(make, episodes)
    _require(
        [_immutable_fields(each) for each in episodes] == before,
        "the algorithm changed tokens, messages or rewards of an episode; it may only write streams to nodes",
    )
    for item in _traces(episodes):
        refused = flatten_trace(item, seq_len=10**6).refused
        _require(not refused, f"the streams of a trace do not match its tokens: {', '.join(refused)}")
        for node in item.nodes:
            for name, weights in (node.loss_weights or {}).items():
                _require(all(map(math.isfinite, weights)), f"a {name} weight is not finite: {weights}")
                stray = [
                    weight
                    for weight, sampled in zip(weights, node.mask, strict=True)
                    if weight and not sampled
                ]
                _require(
                    name == CE or not stray,
                    f"tokens that were not sampled have {name} weights {stray}; only {CE} may weight them",
                )
    for name, value in algorithm.metrics().items():
        _require(math.isfinite(value), f"the metric {name} is {value}; metrics must be finite")


def check_permutation(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Require the same signal for every order of the siblings, unless `order_matters`."""
    episodes = _group(REWARDS, agents)
    if make().order_matters:
        return
    shuffled = [each.model_copy(deep=True) for each in episodes[2:] + episodes[:2]][::-1]
    _score(make, episodes)
    _score(make, shuffled)
    _require_equal(
        _signals(episodes), _signals(shuffled), "the order of a group's episodes changes its signal"
    )


def check_group_of_one(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Require that empty groups and groups of one are scored. If credit needs siblings, advantages must be zero."""
    _score(make, [])
    episodes = _group((1.0,), agents)
    algorithm = _score(make, episodes)
    _all_finite(episodes)
    if algorithm.config.needs_siblings:
        _require(
            not any(_advantages(episodes)),
            f"a group of one has the advantages {_advantages(episodes)}; they must be 0 without siblings",
        )


def check_failed_siblings(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Require that failed episodes count in no baseline and get no advantage.

    A single remaining episode is scored as a group of one, and a group in which all episodes failed raises no error.
    """

    def failed() -> list[Episode]:
        return [
            episode(*_agent_traces(OUTLIER, agents, ok=False)),
            episode(*_agent_traces(OUTLIER, agents), ok=False),
        ]

    _require_unaffected_by(make, agents, failed())
    _score(make, failed())
    remaining = episode(*_agent_traces(1.0, agents))
    algorithm = _score(make, [*failed(), remaining])
    if algorithm.config.needs_siblings:
        _require(
            not any(_advantages([remaining])),
            f"the only episode that did not fail has the advantages {_advantages([remaining])}; they must be 0 without "
            "siblings",
        )


def check_unusable_rewards(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Require that missing, infinite and NaN rewards count in no baseline."""
    _require_unaffected_by(
        make,
        agents,
        [episode(*_agent_traces(reward, agents)) for reward in (None, math.nan, math.inf, -math.inf)],
    )


def check_equal_rewards(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Require equal signals for equal attempts. If credit is relative to siblings, advantages must be exactly zero."""
    # The floating-point mean of seven times 0.1 is not 0.1, so a mean that is rounded shows.
    episodes = [episode(*_agent_traces(0.1, agents)) for _ in range(7)]
    algorithm = _score(make, episodes)
    _all_finite(episodes)
    if algorithm.config.needs_siblings:
        _require(
            not any(_advantages(episodes)),
            f"equal rewards have the advantages {_advantages(episodes)}; they must be exactly 0",
        )
    if not algorithm.order_matters:
        signals = [[_signal(item) for item in each.traces] for each in episodes]
        _require(
            all(signal == signals[0] for signal in signals),
            f"equal attempts have different signals: {signals}",
        )


def check_state_round_trip(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Require that the state survives JSON, and that a resumed algorithm gives the signals of an uninterrupted one."""
    kept, resumed = make(), make()
    _score(lambda: kept, _group(REWARDS, agents))
    resumed.load_state_dict(json.loads(json.dumps(kept.state_dict(), allow_nan=False)))
    first = _group(REWARDS[::-1], agents)
    second = [each.model_copy(deep=True) for each in first]
    _score(lambda: kept, first)
    _score(lambda: resumed, second)
    _require_equal(
        _signals(first),
        _signals(second),
        "a resumed algorithm gives a different signal; add state to state_dict",
    )
    _require(
        kept.state_dict() == resumed.state_dict(),
        f"a resumed algorithm has a different state_dict: {kept.state_dict()} and {resumed.state_dict()}",
    )


def check_barrier(make: Make, agents: Sequence[str] = ("agent",)) -> None:
    """Require that the config declares the barrier of the algorithm, because some code reads only the config."""
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
"""All checks. Each has the arguments of `check_algorithm`."""


# -- groups


def _group(rewards: Sequence[float], agents: Sequence[str]) -> list[Episode]:
    """Return one episode per reward, with several turns and different lengths."""
    return [
        episode(*_agent_traces(reward, agents, [*ROLES, ("tool", 1 + number), ("assistant", 1 + 2 * number)]))
        for number, reward in enumerate(rewards)
    ]


def _agent_traces(
    reward: float | None,
    agents: Sequence[str],
    roles: Sequence[tuple[str, int]] = tuple(ROLES),
    ok: bool = True,
) -> list[Trace]:
    return [trace(reward, roles, agent=agent, ok=ok) for agent in agents]


def _require_unaffected_by(make: Make, agents: Sequence[str], others: list[Episode]) -> None:
    """Require that `others` do not change the signal of a group that contains them, and get no advantages."""
    without = _group(REWARDS, agents)
    among = [each.model_copy(deep=True) for each in without]
    _score(make, without)
    _score(make, [*among[:1], *others, *among[1:]])
    _require_equal(
        _signals(without),
        _signals(among),
        "siblings that cannot be compared (failed, or without a finite reward) change the signal of the others",
    )
    _require(
        _advantages(others) == [], f"traces that cannot be compared have the advantages {_advantages(others)}"
    )


def _score(make: Make, episodes: list[Episode]) -> Algorithm:
    """Set up an algorithm, score a group, and close it. Return the algorithm."""

    async def run() -> Algorithm:
        algorithm = make()
        await algorithm.setup()
        try:
            await score_batch(algorithm, episodes)
        finally:
            await algorithm.close()
        return algorithm

    return asyncio.run(run())


# -- signals


def _traces(episodes: list[Episode]) -> list[Trace]:
    return [item for each in episodes for item in each.traces]


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


def _immutable_fields(scored: Episode) -> dict:
    """Return the fields that an algorithm must not change."""
    return {
        item.id: [
            (node.token_ids, node.mask, node.logprobs, node.message.model_dump()) for node in item.nodes
        ]
        + [{name: reward and reward.value for name, reward in item.rewards.items()}]
        for item in scored.model_copy(deep=True).traces
    }


def _all_finite(episodes: list[Episode]) -> None:
    for values in _signals(episodes).values():
        _require(all(map(math.isfinite, values)), f"a signal is not finite: {values}")


def _require_equal(first: dict[str, Signal], second: dict[str, Signal], broken: str) -> None:
    for name, values in first.items():
        others = second[name]
        close = len(values) == len(others) and all(
            math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in zip(values, others)
        )
        _require(close, f"{broken}: {values} and {others}")


def _require(condition: bool, broken: str) -> None:
    if not condition:
        raise AssertionError(broken)
