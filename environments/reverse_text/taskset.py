"""The `reverse-text` taskset: write a random text backwards.

The config determines all tasks: the i-th task of a split is the same on every machine.
"""

import random
from collections.abc import Iterator
from typing import Self

import verifiers.v1 as vf
from pydantic import Field, model_validator

from braid_tasks import Split, split_of

MAX_REJECTED = 10_000
"""Number of consecutive draws from the other split after which the split counts as empty."""


class ReverseTextConfig(vf.TasksetConfig):
    """Config of the `reverse-text` taskset."""

    num_tasks: int = Field(1000, ge=1)
    """Number of tasks in the split."""
    min_length: int = Field(4, ge=1)
    """Minimum length of a text in characters."""
    max_length: int = Field(8, ge=1)
    """Maximum length of a text in characters. Lengths are uniform in [min_length, max_length]."""
    alphabet: str = Field("abcdefghijklmnopqrstuvwxyz", min_length=2)
    """Characters to draw texts from, uniformly, without repetitions and white space."""
    seed: int = 0
    """Seed of the texts."""
    split: Split = "train"
    """Split to draw from. A hash of the text decides its split, so the splits share no text, whatever their seeds and
    lengths."""
    prompt: str = "{text}"
    """Template of the user message. `{text}` is replaced by the text."""
    demonstrator_accuracy: float = Field(1.0, ge=0, le=1)
    """Fraction of demonstrations that are correct. The others copy the text unchanged."""
    hint: str | None = None
    """Template of a system message that reveals the right answer in place of `{demonstration}`. None for no hint."""

    @model_validator(mode="after")
    def _check_texts_and_templates(self) -> Self:
        if self.max_length < self.min_length:
            raise ValueError(
                f"max_length ({self.max_length}) is smaller than min_length ({self.min_length}); raise max_length or "
                "lower min_length"
            )
        if len(set(self.alphabet)) != len(self.alphabet) or any(
            character.isspace() for character in self.alphabet
        ):
            raise ValueError(
                f"alphabet {self.alphabet!r} has repeated characters or white space; remove them"
            )
        if "{text}" not in self.prompt:
            raise ValueError(
                f"prompt {self.prompt!r} does not contain {{text}}, so the text would be missing from the user "
                "message; add it"
            )
        if self.hint is not None and "{demonstration}" not in self.hint:
            raise ValueError(
                f"hint {self.hint!r} does not contain {{demonstration}}, so it would reveal no answer; add it"
            )
        return self


class ReverseTextData(vf.TaskData):
    """A text and its reversal."""

    text: str
    """Text in the prompt."""
    answer: str
    """Reversed text."""
    demonstration: str
    """Demonstrated reply, for supervised fine-tuning."""


class ReverseTextTask(vf.Task[ReverseTextData]):
    """Task graded by the similarity of reply and answer."""

    @vf.reward
    async def similarity(self, trace: vf.Trace) -> float:
        """Return the `similarity` of the reply and the answer, in [0, 1]."""
        return similarity(trace.last_reply, self.data.answer)

    @vf.metric
    async def exact(self, trace: vf.Trace) -> float:
        """Return 1 if the reply is the answer, else 0."""
        return float(trace.last_reply == self.data.answer)


class ReverseTextTaskset(vf.Taskset[ReverseTextTask, ReverseTextConfig]):
    """Random texts over an alphabet, to be written backwards."""

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
        """Yield the texts of the split. Texts can repeat if there are few different ones."""
        config = self.config
        draw = random.Random(config.seed)
        accepted = rejected = 0
        while accepted < config.num_tasks:
            length = draw.randint(config.min_length, config.max_length)
            text = "".join(draw.choice(config.alphabet) for _ in range(length))
            if split_of(text) == config.split:
                accepted, rejected = accepted + 1, 0
                yield text
            elif (rejected := rejected + 1) >= MAX_REJECTED:
                lengths = f"{config.min_length} to {config.max_length}"
                raise ValueError(
                    f"reverse-text: none of {MAX_REJECTED} texts of {lengths} characters out of "
                    f"{config.alphabet!r} is in split {config.split!r}; allow longer texts or more characters"
                )


def similarity(reply: str, answer: str) -> float:
    """Return 1 - Levenshtein distance / length of the longer text, in [0, 1]; 1 if and only if the texts are equal.

    The reward is dense: each right character counts, and a missing or extra character costs one edit instead of all
    characters after it. Copying a random text of n different characters scores at most 1/n, because a text and its
    reversal agree only in the middle.
    """
    # Row by row of the dynamic program; `diagonal` keeps the entry of the previous row that `row[j]` overwrites.
    row = list(range(len(answer) + 1))
    for i, character in enumerate(reply, start=1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(answer, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (character != wanted))
    return 1 - row[-1] / max(len(reply), len(answer), 1)
