"""Reference models: how likely does another model find the tokens that the policy sampled?"""

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
"""Routes that score prompts, the preferred one first."""
ABSENT = (404, 405, 501)
"""Statuses of a route that a server does not have."""
PROBES = ("Hello, world! 0123456789", "def f(x):\n    return [x, -x]", "naïve 数学 ∑")
"""Texts on which two tokenizers are compared."""


class ScoringError(RuntimeError):
    """A reference model did not score what it was asked to."""


class PolicyClients(Protocol):
    """What an algorithm sees of the live policy."""

    url: str
    """Address, without a trailing `/v1`."""
    api_key: str | None

    @property
    def policy(self) -> str:
        """Name of the policy, which is also where its tokenizer lies."""


class _Entry(msgspec.Struct):
    logprob: float
    decoded_token: str | None = None


Scored = list[dict[str, _Entry] | None]
"""vLLM's `prompt_logprobs`: for each token (None for the first) its own entry and likely others', by id."""


class _ScoringChoice(msgspec.Struct):
    prompt_logprobs: Scored | None = None


class _ScoringAnswer(msgspec.Struct):
    prompt_logprobs: Scored | None = None
    choices: list[_ScoringChoice] = []


class Reference:
    """A model behind one or several vLLM-like servers, with connections of its own. Use as an async context.

    Args:
        name: the model's name at the servers.
        urls: addresses of replicas, with or without a trailing `/v1`.
        api_key: sent with every request; None: no key.
        max_concurrent: most requests at once.
        timeout: deadline of one request, retries included, in seconds.
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
        """A frozen model that somebody else serves."""
        key = read_api_key(model.api_key_var, f"the frozen model {model.name!r}")
        return cls(model.name, model.base_url, api_key=key, max_concurrent=max_concurrent, timeout=timeout)

    @classmethod
    def live(cls, clients: PolicyClients, *, max_concurrent: int, timeout: float) -> Self:
        """The live policy, as it is when it is asked."""
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
        """log p(token t | the tokens before it) at temperature 1 for every token; NaN for the first.

        Raises `ScoringError` when the servers are down or slow for `timeout` seconds, refuse, cannot score
        prompts, or give an answer that does not fit.
        """
        entries = await self._scored(token_ids)
        pairs = list(zip(token_ids, entries, strict=True))
        return [math.nan, *(entry[str(token)].logprob for token, entry in pairs[1:])]

    # -- tokenizers

    async def check_tokenizer(self, policy: str) -> None:
        """Raise `ScoringError` unless every server reads token ids as the policy's tokenizer writes them.

        Where a server offers `/tokenize`, it must give the same ids for `PROBES`. Then these ids and the
        last one of the policy's vocabulary are scored: a smaller vocabulary refuses that, and the text that
        the answer gives for each id (`decoded_token`, where it is there) must be the policy's.
        """
        tokenizer = await asyncio.to_thread(_load_tokenizer, policy)
        for url in self.load:
            if difference := await self._difference(url, tokenizer):
                raise ScoringError(
                    f"{self} has another tokenizer than the policy {policy}: {difference}; it would score other "
                    "text. Use a model of the policy's family"
                )

    async def _difference(self, url: str, tokenizer: Any) -> str | None:
        """How a server reads tokens otherwise than a tokenizer; None where no difference shows."""
        probes = {text: tokenizer.encode(text, add_special_tokens=False) for text in PROBES}
        for text, ours in probes.items():
            theirs = await self._tokenize(url, text)
            if theirs is not None and theirs != ours:
                return f"for {text!r} it gives the ids {theirs} where the policy has {ours}"
        token_ids = [token for ours in probes.values() for token in ours] + [len(tokenizer) - 1]
        entries = await self._scored(token_ids, url)
        for token, entry in list(zip(token_ids, entries, strict=True))[1:]:
            there, here = entry[str(token)].decoded_token, tokenizer.decode([token])
            if there is not None and _differ(there, here):
                return f"token {token} is {there!r} there and {here!r} here"
        return None

    async def _tokenize(self, url: str, text: str) -> list[int] | None:
        """A server's ids of a text; None where it has no such route."""
        body = {"model": self.name, "prompt": text, "add_special_tokens": False}
        status, answer = await self._ask("/tokenize", body, url)
        if status in ABSENT:
            return None
        return self._decode(answer, dict[str, Any]).get("tokens") if status == 200 else None

    # -- requests

    async def _scored(self, token_ids: Sequence[int], url: str | None = None) -> list[dict[str, _Entry]]:
        """For each token what the server says of it, by id, itself among them; nothing for the first."""
        status, answer = await self._ask(self._route, self._body(self._route, token_ids), url)
        if status in ABSENT and self._route == GENERATE:
            status, answer = await self._ask(COMPLETIONS, self._body(COMPLETIONS, token_ids), url)
            self._route = COMPLETIONS if status == 200 else GENERATE
        if status != 200:
            raise ScoringError(
                f"{self} refused to score {len(token_ids)} tokens: status {status}, {_text(answer)}"
            )
        decoded = self._decode(answer, _ScoringAnswer)
        scored = decoded.prompt_logprobs or next((c.prompt_logprobs for c in decoded.choices), None)
        if scored is None:
            raise ScoringError(
                f"{self} cannot score prompts: its answer has no prompt_logprobs; serve it with vLLM or with "
                "`braid inference`"
            )
        entries = [entry or {} for entry in scored]
        held = [str(token) in entry for token, entry in zip(token_ids, entries)]
        if len(entries) != len(token_ids) or not all(held[1:]):
            raise ScoringError(
                f"{self} scored {len(entries)} tokens, {sum(held)} of them those that were asked for, where "
                f"{len(token_ids)} were sent"
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
                f"{self} gave an answer that cannot be read ({error}): {_text(answer)}"
            ) from None

    async def _ask(self, route: str, body: dict[str, Any], only: str | None = None) -> tuple[int, bytes]:
        """(status, answer) of the least busy server, or of `only` one; what fails for a passing reason is tried
        again."""
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
                    seen = f"{url} answered {status}: {_text(answer)}"
                except TimeoutError:
                    seen = seen or f"{url} was still working on the request"
                except aiohttp.ClientError as error:
                    seen = f"{url}: {describe(error)}"
                finally:
                    self.load[url] -= 1
                failed[url] += 1
                if not await backoff.sleep():
                    raise ScoringError(f"{self} gave no answer within {self.timeout:g} s (last seen: {seen})")

    async def _post(self, url: str, body: dict[str, Any], timeout: float) -> tuple[int, bytes]:
        limit = aiohttp.ClientTimeout(total=max(0.001, timeout))
        async with self._http.post(url, json=body, timeout=limit) as response:
            return response.status, await response.read()


async def score_traces(
    reference: Reference, traces: list[Trace], prefixes: list[list[int]] | None = None
) -> None:
    """Score every branch of the traces and attach the log-probs of their sampled tokens.

    `prefixes` holds the token ids that stand before each trace's branches; None: nothing does.
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


def _differ(theirs: str, ours: str) -> bool:
    """Whether two readings of one id are different text; parts of characters and spaces do not tell."""
    partial = "\ufffd" in theirs + ours or not theirs.strip()
    return not partial and theirs.strip() != ours.strip()


def _text(answer: bytes) -> str:
    return answer[:300].decode(errors="replace")
