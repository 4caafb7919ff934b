"""Kuhn poker: rules, exact values of strategies, and hands between two agents."""

from fractions import Fraction

import pytest
import verifiers.v1 as vf
from hypothesis import given, settings
from hypothesis import strategies as st

from kuhn_poker import (
    INFORMATION_SETS,
    KuhnPokerTask,
    conversation,
    equilibrium,
    expected_chips,
    exploitability,
)
from kuhn_poker.game import DEALS, chips, is_over, to_act
from kuhn_poker.taskset import read_action
from tests.support.environments import endpoint, play, tasks
from tests.support.scripted_model import ScriptedModel

BLOCK = {"taskset": {"id": "kuhn-poker"}}
UNIFORM = dict.fromkeys(INFORMATION_SETS, 0.5)


def hand(first: str, second: str) -> KuhnPokerTask:
    return next(task for task in tasks("kuhn-poker", num_tasks=6) if task.data.deal == (first, second))


def by_seat(episode: vf.Episode) -> dict[str, vf.Trace]:
    return {trace.agent.name: trace for trace in episode.traces}


@pytest.mark.parametrize(
    ("history", "won"),
    [("pp", 1), ("pbp", -1), ("pbb", 2), ("bp", 1), ("bb", 2), ("x", -2), ("px", 2), ("pbx", -2), ("bx", 2)],
)
def test_what_a_hand_is_worth(history: str, won: int) -> None:
    assert is_over(history) and chips(("K", "J"), history) == won
    fold_or_forfeit = history[-1] == "x" or history.endswith("bp")
    assert chips(("Q", "K"), history) == (won if fold_or_forfeit else -won)


def test_a_hand_that_is_not_over_is_worth_nothing_yet() -> None:
    with pytest.raises(ValueError, match="player 0 has to act"):
        chips(("K", "J"), "pb")


def test_information_sets() -> None:
    assert len(set(INFORMATION_SETS)) == 12
    assert [key for key in INFORMATION_SETS if to_act(key[1:]) == 1] == ["Jp", "Qp", "Kp", "Jb", "Qb", "Kb"]


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 1 / 3])
def test_the_known_equilibria(alpha: float) -> None:
    assert expected_chips(equilibrium(alpha)) == pytest.approx(-1 / 18, abs=1e-15)
    assert exploitability(equilibrium(alpha)) == pytest.approx(0, abs=1e-15)


def test_the_strategies_whose_worth_is_known() -> None:
    """Closed forms: betting every card wins the ante from a player that always passes. Uniform play has exploitability
    11/24, and player 0 wins 1/8 of a chip."""
    assert exploitability(dict.fromkeys(INFORMATION_SETS, 0.0)) == 1.0
    assert exploitability(UNIFORM) == pytest.approx(float(Fraction(11, 24)), abs=1e-15)
    assert expected_chips(UNIFORM) == pytest.approx(0.125, abs=1e-15)


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
@settings(max_examples=20, deadline=None)
def test_no_strategy_is_better_than_an_equilibrium(shares: list[float]) -> None:
    strategy = dict(zip(INFORMATION_SETS, shares, strict=True))
    assert exploitability(strategy) >= -1e-12
    own = {key: strategy[key] for key in INFORMATION_SETS if to_act(key[1:]) == 0}
    assert expected_chips(equilibrium() | own) <= -1 / 18 + 1e-12


@pytest.mark.parametrize("strategy", [{}, UNIFORM | {"Qb": 1.1}, UNIFORM | {"Qb": float("nan")}])
def test_a_strategy_must_be_whole(strategy: dict) -> None:
    with pytest.raises(ValueError, match="in \\[0, 1\\], at information set"):
        exploitability(strategy)


def test_deals_are_balanced_and_follow_from_the_config_alone() -> None:
    drawn = [task.data for task in tasks("kuhn-poker", num_tasks=60)]
    assert drawn == [task.data for task in tasks("kuhn-poker", num_tasks=60)]
    assert drawn != [task.data for task in tasks("kuhn-poker", num_tasks=60, seed=1)]
    for start in range(0, 60, 6):
        assert {data.deal for data in drawn[start : start + 6]} == set(DEALS)


def test_demonstrations_show_every_decision() -> None:
    drawn = [task.data for task in tasks("kuhn-poker", num_tasks=300)]
    assert {data.prompt[-1].content for data in drawn} == set(INFORMATION_SETS)
    assert 120 < [data.demonstration for data in drawn].count("b") < 180


def test_a_tilted_demonstrator_bets_by_its_card_alone() -> None:
    keys = {"demonstrator_bets": 0.3, "demonstrator_tilt": 0.2}
    drawn = [task.data for task in tasks("kuhn-poker", num_tasks=6000, **keys)]
    replies: dict[str, list[str]] = {}
    for data in drawn:
        replies.setdefault(data.prompt[-1].content, []).append(data.demonstration)
    assert replies.keys() == set(INFORMATION_SETS)
    for information_set, said in replies.items():
        chance = {"J": 0.1, "Q": 0.3, "K": 0.5}[information_set[0]]
        assert said.count("b") / len(said) == pytest.approx(chance, abs=0.1)
    even = [task.data.deal for task in tasks("kuhn-poker", num_tasks=6000)]
    assert [data.deal for data in drawn] == even


def test_a_tilt_beyond_certainty_is_refused() -> None:
    with pytest.raises(ValueError, match="lower demonstrator_tilt"):
        tasks("kuhn-poker", demonstrator_bets=0.1, demonstrator_tilt=-0.2)


def test_the_conversation_at_an_information_set() -> None:
    assert [message["content"] for message in conversation("Qpb")] == ["Q", "p", "Qpb"]
    assert [message["content"] for message in conversation("Jb")] == ["Jb"]


@pytest.mark.parametrize(
    ("reply", "action"), [("b", "b"), (" Fold\n", "p"), ("call", "b"), ("bb", "x"), ("", "x"), ("I bet", "x")]
)
def test_reading_an_action(reply: str, action: str) -> None:
    assert read_action(reply) == action


async def test_self_play_against_the_runs_model() -> None:
    model = ScriptedModel("p", "b", "call")
    episode = await play(model, BLOCK, hand("K", "Q"))
    seats = by_seat(episode)
    assert episode.ok and all(trace.agent.trainable for trace in seats.values())
    assert {name: trace.reward for name, trace in seats.items()} == {"player0": 2.0, "player1": -2.0}
    assert seats["player0"].info == seats["player1"].info == {"history": "pbb"}
    assert seats["player1"].metrics == {"chips_player1": -2.0, "forfeit": 0.0}
    asked = [[message["content"] for message in request["messages"]] for request in model.requests]
    assert asked == [["K"], ["Qp"], ["K", "p", "Kpb"]]
    assert seats["player0"].num_branches == 1


async def test_what_a_seat_is_asked_is_the_conversation_at_its_information_set() -> None:
    model = ScriptedModel("p", "b", "p")
    await play(model, BLOCK, hand("J", "K"))
    asked = [
        [(message["role"], message["content"]) for message in request["messages"]]
        for request in model.requests
    ]
    assert asked == [
        [(message["role"], message["content"]) for message in conversation(key)] for key in ("J", "Kp", "Jpb")
    ]


async def test_a_pinned_opponent_is_frozen_and_does_not_train() -> None:
    frozen = ScriptedModel("p")
    async with frozen.serve() as base_url:
        block = {**BLOCK, "player1": {"model": "old", "client": endpoint(base_url).model_dump()}}
        episode = await play(ScriptedModel("b"), block, hand("J", "K"))
    seats = by_seat(episode)
    assert episode.ok and [request["model"] for request in frozen.requests] == ["old"]
    assert (seats["player0"].agent.trainable, seats["player1"].agent.trainable) == (True, False)
    assert (seats["player0"].reward, seats["player1"].reward) == (1.0, -1.0)


async def test_a_model_name_alone_pins_too() -> None:
    episode = await play(ScriptedModel("b"), {**BLOCK, "player0": {"model": "old"}}, hand("J", "K"))
    assert {name: trace.agent.trainable for name, trace in by_seat(episode).items()} == {
        "player0": False,
        "player1": True,
    }


async def test_no_action_forfeits_the_hand() -> None:
    seats = by_seat(await play(ScriptedModel("p", "hm"), BLOCK, hand("J", "K")))
    assert (seats["player0"].reward, seats["player1"].reward) == (2.0, -2.0)
    assert [seats[name].metrics["forfeit"] for name in ("player0", "player1")] == [0.0, 1.0]
    (trace,) = (await play(ScriptedModel("hm"), BLOCK, hand("J", "K"))).traces
    assert trace.agent.name == "player0" and trace.reward == -2.0


async def test_a_player_that_is_gone_ends_the_hand_without_a_result() -> None:
    episode = await play(ScriptedModel("p", (400, "no such model")), BLOCK, hand("J", "K"))
    assert not episode.ok
    assert "player1 failed, so the hand has no result" in episode.last_error.message
    assert all(trace.rewards == {} for trace in episode.traces)
