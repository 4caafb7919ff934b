"""Reference models: log-probs of the policy's samples under another served model."""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self

import aiohttp
import msgspec
from verifiers.v1 import Trace

from braidrl.configs.algorithm import FrozenModelConfig
from braidrl.orchestrator.train.algo.routing import assign_reference_logprobs
from braidrl.utils.http import RETRIED, Backoff, bearer, describe, read_api_key

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
"""Routes that score prompts, in order of preference."""
ABSENT = (404, 405, 501)
"""Status codes of a missing route."""
PROBES = ("Hello, world! 0123456789", "def f(x):\n    return [x, -x]", "naïve 数学 ∑")
"""Texts used to compare two tokenizers."""


class ScoringError(RuntimeError):
    """A reference model failed to score tokens."""


class PolicyClients(Protocol):
    """Access of an algorithm to the live policy."""

    url: str
    """Base URL, without a trailing `/v1`."""
    api_key: str | None

    @property
    def policy(self) -> str:
        """Name of the policy, which is also the path of its tokenizer."""


class _Entry(msgspec.Struct):
    logprob: float
    decoded_token: str | None = None


Scored = list[dict[str, _Entry] | None]
"""vLLM's `prompt_logprobs`: for each token, entries by token id, including its own. None for the first token."""


class _ScoringChoice(msgspec.Struct):
    prompt_logprobs: Scored | None = None


class _ScoringAnswer(msgspec.Struct):
    prompt_logprobs: Scored | None = None
    choices: list[_ScoringChoice] = []


class Reference:
    """Client of a model behind one or several vLLM-compatible servers. Use it as an async context manager.

    Args:
        name: name of the model at the servers.
        urls: addresses of the replicas, with or without a trailing `/v1`.
        api_key: API key of the servers, or None without one.
        max_concurrent: maximum number of concurrent requests.
        timeout: deadline of one request including its retries, in seconds.
    """

    def __init__(
        self,
        name: str,
        urls: Iterable[str],
        *,
        api_key: str | None = None,
        max_concurrent: int = 32,
        timeout: float = 300.0,
    ) -> None:
        self.name = name
        self.load = {url.rstrip("/").removesuffix("/v1"): 0 for url in urls}
        self.timeout = timeout
        self._headers = bearer(api_key)
        self._slots = asyncio.Semaphore(max_concurrent)
        self._route = GENERATE

    @classmethod
    def frozen(cls, model: FrozenModelConfig, *, max_concurrent: int = 32, timeout: float = 300.0) -> Self:
        """Create a reference for a frozen model."""
        key = read_api_key(model.api_key_var, f"the frozen model {model.name!r}")
        return cls(model.name, model.base_url, api_key=key, max_concurrent=max_concurrent, timeout=timeout)

    @classmethod
    def live(cls, clients: PolicyClients, *, max_concurrent: int, timeout: float) -> Self:
        """Create a reference for the live policy, at its version at the time of each request."""
        key = clients.api_key
        return cls(clients.policy, [clients.url], api_key=key, max_concurrent=max_concurrent, timeout=timeout)

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    def __str__(self) -> str:
        return f"the reference {self.name!r} at {', '.join(self.load)}"

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Return log p(token t | preceding tokens) at temperature 1 for every token. NaN for the first.

        Raises `ScoringError` if no server responds within `timeout` seconds, the request is rejected, the server cannot
        score prompts, or the response does not match the tokens.
        """
        entries = await self._scored(token_ids)
        pairs = list(zip(token_ids, entries, strict=True))
        return [math.nan, *(entry[str(token)].logprob for token, entry in pairs[1:])]

    # -- tokenizers

    async def check_tokenizer(self, policy: str) -> None:
        """Raise `ScoringError` unless every server has the policy's tokenizer, as far as its routes show.

        If a server has `/tokenize`, it must return the policy's ids for `PROBES`. It must also score these ids and the
        last id of the policy's vocabulary, which a smaller vocabulary rejects. If the response contains the text of
        each id (`decoded_token`), it must match the policy's tokenizer.
        """
        tokenizer = await asyncio.to_thread(_load_tokenizer, policy)
        for url in self.load:
            if difference := await self._difference(url, tokenizer):
                raise ScoringError(
                    f"{self} has a different tokenizer from the policy {policy}: {difference}, so it would score "
                    "different text; use a model of the policy's family"
                )

    async def _difference(self, url: str, tokenizer: Any) -> str | None:
        """Describe the first difference between the tokenizer of a server and `tokenizer`, or return None."""
        probes = {text: tokenizer.encode(text, add_special_tokens=False) for text in PROBES}
        for text, expected in probes.items():
            returned = await self._tokenize(url, text)
            if returned is not None and returned != expected:
                return f"for {text!r} it returns the ids {returned}, the policy {expected}"
        token_ids = [token for ids in probes.values() for token in ids] + [len(tokenizer) - 1]
        entries = await self._scored(token_ids, url)
        for token, entry in list(zip(token_ids, entries, strict=True))[1:]:
            decoded, expected_text = entry[str(token)].decoded_token, tokenizer.decode([token])
            if decoded is not None and _differ(decoded, expected_text):
                return f"token {token} is {decoded!r}, in the policy {expected_text!r}"
        return None

    async def _tokenize(self, url: str, text: str) -> list[int] | None:
        """Tokenize a text on a server. Returns None without the route."""
        body = {"model": self.name, "prompt": text, "add_special_tokens": False}
        status, answer = await self._ask("/tokenize", body, url)
        if status in ABSENT:
            return None
        return self._decode(answer, dict[str, Any]).get("tokens") if status == 200 else None

    # -- requests

    async def _scored(self, token_ids: Sequence[int], url: str | None = None) -> list[dict[str, _Entry]]:
        """Return the entries of each token by id, including its own. Empty for the first token."""
        status, answer = await self._ask(self._route, self._body(self._route, token_ids), url)
        if status in ABSENT and self._route == GENERATE:
            status, answer = await self._ask(COMPLETIONS, self._body(COMPLETIONS, token_ids), url)
            self._route = COMPLETIONS if status == 200 else GENERATE
        if status != 200:
            raise ScoringError(
                f"{self} refused to score {len(token_ids)} tokens: status {status}, {_preview(answer)}"
            )
        decoded = self._decode(answer, _ScoringAnswer)
        scored = decoded.prompt_logprobs or next((c.prompt_logprobs for c in decoded.choices), None)
        if scored is None:
            raise ScoringError(
                f"{self} cannot score prompts: its response has no prompt_logprobs; serve it with vLLM or "
                "`braid inference`"
            )
        entries = [entry or {} for entry in scored]
        matching = [str(token) in entry for token, entry in zip(token_ids, entries)]
        if len(entries) != len(token_ids) or not all(matching[1:]):
            raise ScoringError(
                f"{self} returned scores of {len(entries)} tokens, {sum(matching)} of them matching, but "
                f"{len(token_ids)} tokens were sent; serve it with vLLM or `braid inference`"
            )
        return entries

    def _body(self, route: str, token_ids: Sequence[int]) -> dict[str, Any]:
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
        if route == GENERATE:
            return {"model": self.name, "token_ids": list(token_ids), "sampling_params": sampling}
        return {"model": self.name, "prompt": list(token_ids), **sampling}

    def _decode(self, answer: bytes, shape: Any) -> Any:
        try:
            return msgspec.json.decode(answer, type=shape)
        except msgspec.DecodeError as error:
            raise ScoringError(
                f"{self} returned a response that cannot be decoded ({error}): {_preview(answer)}"
            ) from None

    async def _ask(self, route: str, body: dict[str, Any], only: str | None = None) -> tuple[int, bytes]:
        """Send a request to the least loaded server, or to the server `only`. Returns (status, body).

        Connection errors and temporary statuses are retried until `timeout`, on servers with fewer failures first.
        """
        async with self._slots:
            backoff, seen = Backoff(self.timeout), ""
            failed: Counter[str] = Counter()
            while True:
                url = only or min(self.load, key=lambda url: (failed[url], self.load[url]))
                self.load[url] += 1
                try:
                    status, answer = await self._post(url + route, body, backoff.remaining)
                    if status not in RETRIED:
                        return status, answer
                    seen = f"{url} answered {status}: {_preview(answer)}"
                except TimeoutError:
                    seen = seen or f"{url} was still processing the request"
                except aiohttp.ClientError as error:
                    seen = f"{url}: {describe(error)}"
                finally:
                    self.load[url] -= 1
                failed[url] += 1
                if not await backoff.sleep():
                    raise ScoringError(f"{self} did not answer within {self.timeout:g} s (last seen: {seen})")

    async def _post(self, url: str, body: dict[str, Any], timeout: float) -> tuple[int, bytes]:
        limit = aiohttp.ClientTimeout(total=max(0.001, timeout))
        async with self._http.post(url, json=body, timeout=limit) as response:
            return response.status, await response.read()


async def score_traces(
    reference: Reference, traces: list[Trace], prefixes: list[list[int]] | None = None
) -> None:
    """Score every branch of the traces and attach the log-probs of their sampled tokens.

    Args:
        prefixes: token ids to insert before the branches of each trace, or None for no prefix.
    """
    prefixes = prefixes or [[] for _ in traces]
    work = [
        (branch, prefix) for trace, prefix in zip(traces, prefixes, strict=True) for branch in trace.branches
    ]
    scores = await asyncio.gather(*(reference.score([*prefix, *branch.token_ids]) for branch, prefix in work))
    for (branch, prefix), scored in zip(work, scores, strict=True):
        assign_reference_logprobs(branch, scored, len(prefix))


def _load_tokenizer(path: str) -> Any:
    from renderers.base import load_tokenizer

    return load_tokenizer(path)


def _differ(decoded: str, expected: str) -> bool:
    """Return True if two texts of one token id differ.

    Partial characters and whitespace are ignored, since servers and tokenizers decode them in different ways.
    """
    inconclusive = "\ufffd" in decoded + expected or not decoded.strip()
    return not inconclusive and decoded.strip() != expected.strip()


def _preview(answer: bytes) -> str:
    return answer[:300].decode(errors="replace")
