"""The `guess-number` taskset: a secret number in an interval, to be found with few guesses."""

import random
from collections.abc import Iterator
from typing import Any, Self

import verifiers.v1 as vf
from pydantic import Field, model_validator

from braid_tasks import DrawnConfig, last_integer

HIGHER, LOWER, UNREADABLE = "higher", "lower", "a number, please"
PASS = "?"
"""What a demonstrator says who does not guess."""


class GuessNumberConfig(DrawnConfig):
    """Which numbers are asked for. The splits share no interval; in each the secret is uniform."""

    largest: int = Field(99, ge=1)
    """Intervals lie anywhere in [0, largest]."""
    width: int = Field(8, ge=2)
    """Numbers in an interval."""
    guesses: int = Field(4, ge=1)
    """Guesses that a task allows. Halving the interval finds every number with floor(log2(width)) + 1."""
    prompt: str = "{low}-{high}"
    """The opening user message; `{low}` and `{high}` stand for the ends of the interval, both included."""
    demonstrator_accuracy: float = Field(1.0, ge=0, le=1)
    """Share of the demonstrator's guesses that halve what is left; the others are a question mark."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if self.width > self.largest + 1:
            raise ValueError(
                f"width ({self.width}) is larger than the {self.largest + 1} numbers that there are"
            )
        for end in ("{low}", "{high}"):
            if end not in self.prompt:
                raise ValueError(
                    f"prompt {self.prompt!r} lacks {end}, so the model would not see the interval"
                )
        return self


class GuessNumberData(vf.TaskData):
    """One secret."""

    low: int
    high: int
    secret: int
    guesses: int
    demonstration: list[dict[str, Any]]
    """The demonstrator's dialogue, from its first guess on."""

    def feedback(self, reply: str) -> str | None:
        """What the user says to a guess: the last integer of `reply`; None if it is the secret."""
        guess = last_integer(reply)
        if guess is None or len(guess) > len(str(self.high)) + 1:
            return UNREADABLE
        if int(guess) == self.secret:
            return None
        return HIGHER if int(guess) < self.secret else LOWER


class GuessNumberTask(vf.Task[GuessNumberData]):
    """Graded by how early the number was found."""

    @vf.reward
    async def early(self, trace: vf.Trace) -> float:
        """1 for the first guess, 1/n less for each further one of n; 0 if the number was not found."""
        needed = self._needed(trace)
        return 0.0 if needed is None else 1 - (needed - 1) / self.data.guesses

    @vf.metric
    async def found(self, trace: vf.Trace) -> float:
        """1 if the number was found, else 0."""
        return float(self._needed(trace) is not None)

    def _needed(self, trace: vf.Trace) -> int | None:
        """The guess that was right, counted from 1."""
        replies = [message.content or "" for message in trace.assistant_messages[: self.data.guesses]]
        right = (number for number, reply in enumerate(replies, 1) if self.data.feedback(reply) is None)
        return next(right, None)


class GuessNumberTaskset(vf.Taskset[GuessNumberTask, GuessNumberConfig]):
    """Random intervals with a random secret in each."""

    def load(self) -> Iterator[GuessNumberTask]:
        config = self.config
        secrets, demonstrator = random.Random(config.seed), random.Random(config.seed + 1)
        for low in config.draw(self._draw, key=self._interval):
            secret = low + secrets.randrange(config.width)
            high = low + config.width - 1
            data = GuessNumberData(
                prompt=config.prompt.replace("{low}", str(low)).replace("{high}", str(high)),
                low=low,
                high=high,
                secret=secret,
                guesses=config.guesses,
                demonstration=halving(
                    low, high, secret, config.guesses, config.demonstrator_accuracy, demonstrator
                ),
            )
            yield GuessNumberTask(data, config.task)

    def _draw(self, generator: random.Random) -> int:
        return generator.randint(0, self.config.largest - self.config.width + 1)

    def _interval(self, low: int) -> str:
        return f"{low}-{low + self.config.width - 1}"


def halving(
    low: int,
    high: int,
    secret: int,
    guesses: int,
    accuracy: float = 1.0,
    generator: random.Random | None = None,
) -> list[dict[str, Any]]:
    """The dialogue of a binary search for `secret` in [low, high], at most `guesses` guesses long.

    A share 1 - `accuracy` of the guesses is a question mark instead, whatever was answered.
    """
    generator = generator or random.Random(0)
    dialogue: list[dict[str, Any]] = []
    for number in range(1, guesses + 1):
        guess = (low + high) // 2
        if generator.random() >= accuracy:
            dialogue.append({"role": "assistant", "content": PASS})
            if number < guesses:
                dialogue.append({"role": "user", "content": UNREADABLE})
            continue
        dialogue.append({"role": "assistant", "content": str(guess)})
        if guess == secret or number == guesses:
            break
        if guess < secret:
            low = max(low, guess + 1)
        else:
            high = min(high, guess - 1)
        dialogue.append({"role": "user", "content": HIGHER if guess < secret else LOWER})
    return dialogue
