"""The `guess-number` taskset: find a secret number of an interval with few guesses."""

import random
from collections.abc import Iterator
from typing import Any, Self

import verifiers.v1 as vf
from pydantic import Field, model_validator

from braid_tasks import DrawnConfig, last_integer

HIGHER, LOWER, UNREADABLE = "higher", "lower", "a number, please"
PASS = "?"
"""Reply of a demonstrator that does not guess."""


class GuessNumberConfig(DrawnConfig):
    """Config of the `guess-number` taskset. The splits share no interval. The secret is uniform in its interval."""

    largest: int = Field(99, ge=1)
    """Upper bound of all intervals; the lower bound is 0."""
    width: int = Field(8, ge=2)
    """Number of integers in an interval."""
    guesses: int = Field(4, ge=1)
    """Maximum number of guesses per task. Binary search finds every number in floor(log2(width)) + 1 guesses."""
    prompt: str = "{low}-{high}"
    """Template of the first user message. `{low}` and `{high}` are replaced by the ends of the interval, inclusive."""
    demonstrator_accuracy: float = Field(1.0, ge=0, le=1)
    """Fraction of the demonstrator's guesses that halve the remaining interval. The others are a question mark."""

    @model_validator(mode="after")
    def _check_interval_and_prompt(self) -> Self:
        if self.width > self.largest + 1:
            raise ValueError(
                f"width ({self.width}) exceeds the {self.largest + 1} integers in [0, largest]; lower width or "
                "raise largest"
            )
        for end in ("{low}", "{high}"):
            if end not in self.prompt:
                raise ValueError(
                    f"prompt {self.prompt!r} does not contain {end}, so the interval would be missing from the "
                    "user message; add it"
                )
        return self


class GuessNumberData(vf.TaskData):
    """An interval and its secret number."""

    low: int
    high: int
    secret: int
    guesses: int
    demonstration: list[dict[str, Any]]
    """Demonstrated dialogue, starting with the first guess."""

    def feedback(self, reply: str) -> str | None:
        """Return the user's answer to a guess, the last integer of `reply`. None if it is the secret."""
        guess = last_integer(reply)
        # The length limit rejects huge integers before they are converted; + 1 allows for a minus sign.
        if guess is None or len(guess) > len(str(self.high)) + 1:
            return UNREADABLE
        if int(guess) == self.secret:
            return None
        return HIGHER if int(guess) < self.secret else LOWER


class GuessNumberTask(vf.Task[GuessNumberData]):
    """Task graded by how early the number is found."""

    @vf.reward
    async def early(self, trace: vf.Trace) -> float:
        """Return 1 if the first of n guesses is right, 1/n less for each further guess, 0 if none is right."""
        needed = self._needed(trace)
        return 0.0 if needed is None else 1 - (needed - 1) / self.data.guesses

    @vf.metric
    async def found(self, trace: vf.Trace) -> float:
        """Return 1 if the number was found, else 0."""
        return float(self._needed(trace) is not None)

    def _needed(self, trace: vf.Trace) -> int | None:
        """Return the 1-based index of the right guess, or None."""
        replies = [message.content or "" for message in trace.assistant_messages[: self.data.guesses]]
        right = (number for number, reply in enumerate(replies, 1) if self.data.feedback(reply) is None)
        return next(right, None)


class GuessNumberTaskset(vf.Taskset[GuessNumberTask, GuessNumberConfig]):
    """Random intervals, each with a random secret."""

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
    """Return the dialogue of a binary search for `secret` in [low, high] with at most `guesses` guesses.

    Each guess is replaced by a question mark with probability 1 - `accuracy`.
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
