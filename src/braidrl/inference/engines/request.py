"""One completion on its way through the engine."""

from concurrent.futures import Future
from dataclasses import dataclass, field

from braidrl.inference.engines.sampling import Candidates, SamplingParams

Score = tuple[int, float, int]
"""Token id, log-probability, rank (1 is the best)."""


@dataclass(eq=False)
class Completion:
    """One completion: what was asked, and what there is so far."""

    id: str
    prompt: list[int]
    params: SamplingParams
    seed: int
    """Seed of its draws."""
    max_tokens: int
    """Tokens that it may generate, the context limit included."""
    stop_ids: frozenset[int]
    """Tokens that end it."""
    salt: str = ""
    """Only requests of the same salt share cached prefixes."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and completion so far."""
    cached: int = 0
    """How many of `tokens` have keys and values under the current weights."""
    logprobs: list[float] = field(default_factory=list)
    candidates: list[Candidates] = field(default_factory=list)
    scores: list[list[Score]] = field(default_factory=list)
    """Of prompt tokens 1, 2, ...: the token itself, then the most likely ones."""
    versions: list[tuple[int, int]] = field(default_factory=list)
    """Runs of (weight version, generated tokens)."""
    finish_reason: str | None = None
    future: "Future[Completion]" = field(default_factory=Future)
    """Resolves to the request itself when it is finished; cancelling it aborts the request."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def completion(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """What siblings have in common."""
        return self.salt, tuple(self.prompt)

    @property
    def wants_scores(self) -> bool:
        """Whether prompt log-probs are still missing."""
        return self.params.prompt_logprobs is not None and len(self.scores) < len(self.prompt) - 1

    def add(self, token: int, logprob: float, candidates: Candidates, version: int) -> None:
        """Append a drawn token and finish when it is the last."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.candidates.append(candidates)
        last, count = self.versions[-1] if self.versions else (version, 0)
        if last == version:
            self.versions[-1:] = [(version, count + 1)]
        else:
            self.versions.append((version, 1))
        if token in self.stop_ids:
            self.finish_reason = "stop"
        elif len(self.logprobs) == self.max_tokens:
            self.finish_reason = "length"

    def fail(self, error: BaseException) -> None:
        """Tell the caller, if it is still there."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
