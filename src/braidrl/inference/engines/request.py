"""Request of the embedded engine and its progress."""

from concurrent.futures import Future
from dataclasses import dataclass, field

from braidrl.inference.engines.sampling import Candidates, SamplingParams

Score = tuple[int, float, int]
"""Token id, log-prob, rank (1 is the most likely)."""


@dataclass(eq=False)
class Completion:
    """Parameters and state of one completion."""

    id: str
    prompt: list[int]
    params: SamplingParams
    seed: int
    """Random seed."""
    max_tokens: int
    """Maximum number of generated tokens, already capped by the context limit."""
    stop_ids: frozenset[int]
    """Tokens that end the completion."""
    salt: str = ""
    """Cache salt. Only requests with the same salt share cached prefixes."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and completion so far."""
    cached: int = 0
    """Number of leading `tokens` with keys and values computed with the current weights."""
    logprobs: list[float] = field(default_factory=list)
    candidates: list[Candidates] = field(default_factory=list)
    scores: list[list[Score]] = field(default_factory=list)
    """Scores of prompt tokens 1, 2, ...: first of the token itself, then of the most likely ones."""
    versions: list[tuple[int, int]] = field(default_factory=list)
    """Run-length encoded policy versions: (version, number of generated tokens)."""
    finish_reason: str | None = None
    future: "Future[Completion]" = field(default_factory=Future)
    """Resolves to this object when it is finished. Cancelling it aborts the request."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def completion(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Key of the prompt in the prefix cache, shared by siblings."""
        return self.salt, tuple(self.prompt)

    @property
    def wants_scores(self) -> bool:
        """True if requested prompt log-probs are still missing."""
        return self.params.prompt_logprobs is not None and len(self.scores) < len(self.prompt) - 1

    def add(self, token: int, logprob: float, candidates: Candidates, version: int) -> None:
        """Append a sampled token. Set `finish_reason` if it is the last."""
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
        """Set an exception on the future unless the caller has cancelled it."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
