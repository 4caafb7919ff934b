"""The `reverse-text` taskset: given random text, write it backwards.

Everything follows from the config: the i-th task of a split is the same on every machine.
"""

import random
from collections.abc import Iterator
from typing import Self

import verifiers.v1 as vf
from pydantic import Field, model_validator

from braid_tasks import Split, split_of

MAX_REFUSED = 10_000
"""Draws of the other split in a row after which the split counts as empty."""


class ReverseTextConfig(vf.TasksetConfig):
    """Which texts are asked for."""

    num_tasks: int = Field(1000, ge=1)
    """Tasks in the split."""
    min_length: int = Field(4, ge=1)
    """Fewest characters of a text."""
    max_length: int = Field(8, ge=1)
    """Most characters of a text; lengths are uniform in between."""
    alphabet: str = Field("abcdefghijklmnopqrstuvwxyz", min_length=2)
    """Characters that texts are drawn from, uniformly; each occurs once and none is white space."""
    seed: int = 0
    """Draws the texts."""
    split: Split = "train"
    """The splits share no text, whatever their seeds and lengths: the text itself decides to which one it
    belongs."""
    prompt: str = "{text}"
    """The user message; `{text}` stands for the text."""
    demonstrator_accuracy: float = Field(1.0, ge=0, le=1)
    """Share of demonstrations that are right; in the others the demonstrator copies the text as it is."""
    hint: str | None = None
    """A system message that shows the right answer; `{demonstration}` stands for it. None: the model is not helped."""

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        if self.max_length < self.min_length:
            raise ValueError(f"max_length ({self.max_length}) is smaller than min_length ({self.min_length})")
        if len(set(self.alphabet)) != len(self.alphabet) or any(
            character.isspace() for character in self.alphabet
        ):
            raise ValueError(f"alphabet {self.alphabet!r} must hold different characters and no white space")
        if "{text}" not in self.prompt:
            raise ValueError(
                f"prompt {self.prompt!r} does not contain {{text}}, so the model would not see the text"
            )
        if self.hint is not None and "{demonstration}" not in self.hint:
            raise ValueError(f"hint {self.hint!r} does not contain {{demonstration}}, so it would show none")
        return self


class ReverseTextData(vf.TaskData):
    """One text and its reversal."""

    text: str
    """What the prompt shows."""
    answer: str
    """The text backwards."""
    demonstration: str
    """The demonstrator's reply, for supervised training."""


class ReverseTextTask(vf.Task[ReverseTextData]):
    """Graded by how much of the reply is right, in the right place."""

    @vf.reward
    async def similarity(self, trace: vf.Trace) -> float:
        """`similarity` of the reply and the answer, in [0, 1]."""
        return similarity(trace.last_reply, self.data.answer)

    @vf.metric
    async def exact(self, trace: vf.Trace) -> float:
        """1 if the reply is the answer, else 0."""
        return float(trace.last_reply == self.data.answer)


class ReverseTextTaskset(vf.Taskset[ReverseTextTask, ReverseTextConfig]):
    """Random texts over an alphabet, each to be written backwards."""

    def load(self) -> Iterator[ReverseTextTask]:
        demonstrator = random.Random(self.config.seed + 1)
        for text in self._texts():
            right = demonstrator.random() < self.config.demonstrator_accuracy
            hint = self.config.hint
            data = ReverseTextData(
                system_prompt=None if hint is None else hint.replace("{demonstration}", text[::-1]),
                prompt=self.config.prompt.replace("{text}", text),
                text=text,
                answer=text[::-1],
                demonstration=text[::-1] if right else text,
            )
            yield ReverseTextTask(data, self.config.task)

    def _texts(self) -> Iterator[str]:
        """Texts of the split, in their order; the same text may come twice when there are few."""
        config = self.config
        draw = random.Random(config.seed)
        accepted = refused = 0
        while accepted < config.num_tasks:
            length = draw.randint(config.min_length, config.max_length)
            text = "".join(draw.choice(config.alphabet) for _ in range(length))
            if split_of(text) == config.split:
                accepted, refused = accepted + 1, 0
                yield text
            elif (refused := refused + 1) >= MAX_REFUSED:
                lengths = f"{config.min_length} to {config.max_length}"
                raise ValueError(
                    f"reverse-text: none of {MAX_REFUSED} texts of {lengths} characters out of "
                    f"{config.alphabet!r} is in split {config.split!r}; allow longer texts or more characters"
                )


def similarity(reply: str, answer: str) -> float:
    """1 - edit distance / length of the longer one, in [0, 1]; 1 exactly when they are equal.

    The distance is Levenshtein's (insertions, deletions, substitutions). Each character that a policy gets
    right earns something, a missing or extra one costs one and not all that follow, and copying a random text
    of n different characters earns at most 1/n: a text and its reversal agree in the middle alone.
    """
    row = list(range(len(answer) + 1))
    for i, character in enumerate(reply, start=1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(answer, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (character != wanted))
    return 1 - row[-1] / max(len(reply), len(answer), 1)
