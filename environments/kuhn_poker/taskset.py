"""The `kuhn-poker` taskset: one deal per task."""

import random
from collections.abc import Iterator
from typing import Any, Self

import verifiers.v1 as vf
from pydantic import Field, model_validator

from kuhn_poker.game import BET, CARDS, DEALS, DECISIONS, FORFEIT, PASS, to_act

ACTIONS = {
    "b": BET,
    "bet": BET,
    "call": BET,
    "p": PASS,
    "pass": PASS,
    "check": PASS,
    "fold": PASS,
}
"""Action for each valid reply. Case is ignored."""


class KuhnPokerConfig(vf.TasksetConfig):
    """Config of the `kuhn-poker` taskset. It has no splits, because the game has only six deals."""

    num_tasks: int = Field(600, ge=1)
    """Number of hands. Each block of six hands has the six deals in random order."""
    seed: int = 0
    """Seed of the order of the deals."""
    demonstrator_bets: float = Field(0.5, ge=0, le=1)
    """Probability that a demonstration bets with a queen. Without tilt, it applies to all cards, so that demonstrations
    teach the format of a reply, but no strategy."""
    demonstrator_tilt: float = Field(0.0, ge=-0.5, le=0.5)
    """Increase of the betting probability for a king and decrease for a jack, regardless of the history. With a tilt,
    the policy learns from demonstrations that its card matters."""

    @model_validator(mode="after")
    def _check_probabilities(self) -> Self:
        bets, tilt = self.demonstrator_bets, self.demonstrator_tilt
        if not abs(tilt) <= bets <= 1 - abs(tilt):
            raise ValueError(
                f"demonstrator_bets ({bets}) plus or minus demonstrator_tilt ({tilt}) must be a probability in "
                "[0, 1]; lower demonstrator_tilt"
            )
        return self

    def demonstrator_chance(self, card: str) -> float:
        """Return the probability that a demonstration bets with `card`."""
        return self.demonstrator_bets + self.demonstrator_tilt * (CARDS.index(card) - CARDS.index("Q"))


class KuhnPokerData(vf.TaskData):
    """A deal. `prompt` and `demonstration` are one decision of it, for supervised fine-tuning; a seat of an episode has
    its own prompt."""

    deal: tuple[str, str]
    """Cards of player 0 and player 1: J, Q or K."""
    demonstration: str | None
    """Demonstrated action, for supervised fine-tuning. None in the task of a seat."""


class KuhnPokerTask(vf.Task[KuhnPokerData]):
    """Task graded by the environment when the hand is over."""

    def seat(self, information_set: str) -> "KuhnPokerTask":
        """Return the task of the player whose first decision is at `information_set`."""
        return self.with_data(prompt=information_set, demonstration=None)


class KuhnPokerTaskset(vf.Taskset[KuhnPokerTask, KuhnPokerConfig]):
    """Deals in random order, equally often."""

    def load(self) -> Iterator[KuhnPokerTask]:
        generator = random.Random(self.config.seed)
        order: list[tuple[str, str]] = []
        for _ in range(self.config.num_tasks):
            order = order or generator.sample(DEALS, len(DEALS))
            deal, history = order.pop(), generator.choice(DECISIONS)
            card = deal[to_act(history)]
            bets = generator.random() < self.config.demonstrator_chance(card)
            data = KuhnPokerData.model_validate(
                {
                    "prompt": conversation(card + history),
                    "deal": deal,
                    "demonstration": BET if bets else PASS,
                }
            )
            yield KuhnPokerTask(data, self.config.task)


def conversation(information_set: str) -> list[dict[str, Any]]:
    """Return the chat messages that request an action at one of `INFORMATION_SETS`.

    Each user message is the information set at that time, and the player's own earlier actions are the replies.
    """
    card, history = information_set[0], information_set[1:]
    messages: list[dict[str, Any]] = []
    for length in range(to_act(history), len(history), 2):
        messages.append({"role": "user", "content": card + history[:length]})
        messages.append({"role": "assistant", "content": history[length]})
    return [*messages, {"role": "user", "content": information_set}]


def read_action(reply: str) -> str:
    """Return the action of a reply, or `FORFEIT` if the reply is not exactly one of `ACTIONS`."""
    return ACTIONS.get(reply.strip().lower(), FORFEIT)
