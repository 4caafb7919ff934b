"""The `kuhn-poker` taskset: one deal a task."""

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
"""What a reply may say, in any case."""


class KuhnPokerConfig(vf.TasksetConfig):
    """How many hands are dealt. There are no splits: the game has six deals."""

    num_tasks: int = Field(600, ge=1)
    """Hands. Every six in a row are the six deals in random order."""
    seed: int = 0
    """Shuffles the deals."""
    demonstrator_bets: float = Field(0.5, ge=0, le=1)
    """How often a demonstration bets with a queen, and with any card where there is no tilt: by chance, so that it
    teaches the form alone."""
    demonstrator_tilt: float = Field(0.0, ge=-0.5, le=0.5)
    """How much more often it bets with a king, and less often with a jack, whatever happened so far: a beginner's whim
    that makes a model look at its card, which a coin does not."""

    @model_validator(mode="after")
    def _are_chances(self) -> Self:
        bets, tilt = self.demonstrator_bets, self.demonstrator_tilt
        if not abs(tilt) <= bets <= 1 - abs(tilt):
            raise ValueError(
                f"demonstrator_bets ({bets}) tilted by demonstrator_tilt ({tilt}) leaves [0, 1]; a chance must not: "
                "lower demonstrator_tilt"
            )
        return self

    def demonstrator_chance(self, card: str) -> float:
        """How likely a demonstration bets with this card."""
        return self.demonstrator_bets + self.demonstrator_tilt * (CARDS.index(card) - CARDS.index("Q"))


class KuhnPokerData(vf.TaskData):
    """One deal. `prompt` and `demonstration` show one decision in it; a seat sees its own prompt."""

    deal: tuple[str, str]
    """The cards of player 0 and player 1, each one of J, Q, K."""
    demonstration: str | None
    """A legal action, for supervised training; None in a seat."""


class KuhnPokerTask(vf.Task[KuhnPokerData]):
    """Graded by the environment when the hand is over."""

    def seat(self, information_set: str) -> "KuhnPokerTask":
        """This deal as the player sees it who acts first at `information_set`."""
        return self.with_data(prompt=information_set, demonstration=None)


class KuhnPokerTaskset(vf.Taskset[KuhnPokerTask, KuhnPokerConfig]):
    """Deals in balanced random order."""

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
    """The chat messages that ask for an action at one of `INFORMATION_SETS`; what the model answers to them
    is its strategy there. A user message is the information set itself, an own earlier action a reply."""
    card, history = information_set[0], information_set[1:]
    messages: list[dict[str, Any]] = []
    for length in range(to_act(history), len(history), 2):
        messages.append({"role": "user", "content": card + history[:length]})
        messages.append({"role": "assistant", "content": history[length]})
    return [*messages, {"role": "user", "content": information_set}]


def read_action(reply: str) -> str:
    """The action that a reply names, and nothing else; `FORFEIT` if it names none."""
    return ACTIONS.get(reply.strip().lower(), FORFEIT)
