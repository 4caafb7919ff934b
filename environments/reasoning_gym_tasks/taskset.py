"""The `reasoning-gym-tasks` taskset: one generator of `reasoning-gym`, which also grades."""

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
"""Seeds of single tasks lie below."""
RESERVED = ("seed", "size")
"""Parameters of a generator that the taskset sets."""


class ReasoningGymConfig(DrawnConfig):
    """Which generator, and how it is set."""

    dataset: str = "chain_sum"
    """Name of a generator, such as `chain_sum`, `leg_counting` or `mini_sudoku`."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Its parameters, such as `{max_terms = 3}`."""
    prompt: str = "{question}"
    """The user message; `{question}` stands for the question. A reply that writes `<answer>...</answer>` is
    graded by what stands between the last such tags, any other as a whole."""

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        if self.dataset not in DATASETS:
            similar = get_close_matches(self.dataset, DATASETS, n=3)
            hint = f"; did you mean {' or '.join(similar)}?" if similar else f"; there are {len(DATASETS)}"
            raise ValueError(f"reasoning-gym has no dataset {self.dataset!r}{hint}")
        if taken := [name for name in RESERVED if name in self.params]:
            raise ValueError(f"params {taken} are set by the taskset; use its seed and num_tasks")
        try:
            make_entry(self.dataset, json.dumps(self.params), 0)
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"params {self.params} do not suit {self.dataset!r}: {error}") from None
        if "{question}" not in self.prompt:
            raise ValueError(f"prompt {self.prompt!r} does not contain {{question}}")
        return self


class ReasoningGymData(vf.TaskData):
    """One question. What the generator needs to grade it is made again from the seed: not all of it is JSON."""

    dataset: str
    params: str
    """The generator's parameters, as JSON."""
    entry_seed: int
    demonstration: str | None
    """A right answer, for supervised training; None where the generator tells none."""


class ReasoningGymTask(vf.Task[ReasoningGymData]):
    """Graded by the generator."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """The generator's own score of the answer, in [0, 1]; 0 for an answer that it cannot read."""
        data, reply = self.data, trace.last_reply
        generator, entry = make_entry(data.dataset, data.params, data.entry_seed)
        answer = extract_answer(reply)
        try:
            return float(generator.score_answer(reply if answer is None else answer, entry))
        except Exception:  # some generators raise whatever parsing raises
            logger.info("dataset %s cannot read an answer", data.dataset, exc_info=True)
            return 0.0


class ReasoningGymTaskset(vf.Taskset[ReasoningGymTask, ReasoningGymConfig]):
    """Questions of one generator. The question decides on the split."""

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
    """A generator and its entry of this seed. The same arguments give the same entry.

    Raises:
        AssertionError, TypeError, ValueError: `params` (JSON) do not suit the generator.
    """
    generator = create_dataset(dataset, seed=seed, size=1, **json.loads(params))
    return generator, generator[0]
