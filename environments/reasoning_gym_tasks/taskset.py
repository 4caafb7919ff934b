"""The `reasoning-gym-tasks` taskset: tasks and grading of one generator of `reasoning-gym`."""

import functools
import json
import logging
import random
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Self

import verifiers.v1 as vf
from pydantic import Field, model_validator
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS, create_dataset
from reasoning_gym.utils import extract_answer

from braid_tasks import DrawnConfig

logger = logging.getLogger(__name__)

MAX_SEED = 2**31
"""Exclusive upper bound of the seeds of individual tasks."""
RESERVED = ("seed", "size")
"""Parameters of a generator that the taskset sets itself."""


class ReasoningGymConfig(DrawnConfig):
    """Config of the `reasoning-gym-tasks` taskset."""

    dataset: str = "chain_sum"
    """Name of a generator, such as `chain_sum`, `leg_counting` or `mini_sudoku`."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the generator, such as `{max_terms = 3}`."""
    prompt: str = "{question}"
    """Template of the user message. `{question}` is replaced by the question. Only the text between the last
    `<answer>...</answer>` of a reply is graded, or the whole reply if it has no such tags."""

    @model_validator(mode="after")
    def _check_generator_and_prompt(self) -> Self:
        if self.dataset not in DATASETS:
            similar = get_close_matches(self.dataset, DATASETS, n=3)
            hint = (
                f"did you mean {' or '.join(similar)}?"
                if similar
                else f"choose one of the {len(DATASETS)} names in reasoning_gym.factory.DATASETS"
            )
            raise ValueError(f"reasoning-gym has no dataset {self.dataset!r}; {hint}")
        if reserved := [name for name in RESERVED if name in self.params]:
            raise ValueError(f"params {reserved} are set by the taskset; use its seed and num_tasks")
        try:
            make_entry(self.dataset, json.dumps(self.params), 0)
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"params {self.params} are invalid for {self.dataset!r}: {error}") from None
        if "{question}" not in self.prompt:
            raise ValueError(
                f"prompt {self.prompt!r} does not contain {{question}}, so the question would be missing from the "
                "user message; add it"
            )
        return self


class ReasoningGymData(vf.TaskData):
    """A question. Its entry, which the generator needs for grading, is regenerated from the seed, because entries may
    contain values that JSON cannot represent."""

    dataset: str
    params: str
    """Parameters of the generator, as JSON."""
    entry_seed: int
    demonstration: str | None
    """Right answer, for supervised fine-tuning. None if the generator does not provide one."""


class ReasoningGymTask(vf.Task[ReasoningGymData]):
    """Task graded by the generator."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """Return the generator's score of the answer, in [0, 1]. It is 0 for an answer that cannot be parsed."""
        data, reply = self.data, trace.last_reply
        generator, entry = make_entry(data.dataset, data.params, data.entry_seed)
        answer = extract_answer(reply)
        try:
            return float(generator.score_answer(reply if answer is None else answer, entry))
        except Exception:  # some generators do not catch errors of their parsers, which can be of any type
            logger.info("dataset %s cannot parse an answer; its score is 0", data.dataset, exc_info=True)
            return 0.0


class ReasoningGymTaskset(vf.Taskset[ReasoningGymTask, ReasoningGymConfig]):
    """Questions of one generator. A hash of the question decides its split."""

    def load(self) -> Iterator[ReasoningGymTask]:
        config, params = self.config, json.dumps(self.config.params)

        def draw(generator: random.Random) -> tuple[int, dict[str, Any]]:
            seed = generator.randrange(MAX_SEED)
            return seed, make_entry(config.dataset, params, seed)[1]

        for seed, entry in config.draw(draw, key=lambda drawn: drawn[1]["question"]):
            data = ReasoningGymData(
                prompt=config.prompt.replace("{question}", entry["question"]),
                dataset=config.dataset,
                params=params,
                entry_seed=seed,
                demonstration=entry["answer"],
            )
            yield ReasoningGymTask(data, config.task)


@functools.lru_cache(maxsize=4096)
def make_entry(dataset: str, params: str, seed: int) -> tuple[ProceduralDataset, dict[str, Any]]:
    """Return a generator and its entry for this seed. The same arguments always give the same entry.

    Raises:
        AssertionError, TypeError, ValueError: `params` (JSON) are invalid for the generator.
    """
    generator = create_dataset(dataset, seed=seed, size=1, **json.loads(params))
    return generator, generator[0]
