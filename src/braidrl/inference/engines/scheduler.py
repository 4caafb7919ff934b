"""Scheduler of the embedded engine: continuous batching with a prefill budget."""

from collections.abc import Sequence

from braidrl.inference.engines.attention import Span
from braidrl.inference.engines.cache import PrefixCache, SlotCache
from braidrl.inference.engines.request import Completion

SCORED_TOKENS = 256
"""Maximum number of prompt tokens scored in one forward. Each needs a row of logits."""

Work = tuple[Completion, Span]


class ForwardBatch:
    """Input of one forward: the flat tokens of its spans and the positions whose logits are used."""

    def __init__(self, work: Sequence[Work]) -> None:
        self.token_ids: list[int] = []
        self.spans = [span for _, span in work]
        self.drawing: list[Completion] = []
        """Requests that sample a token. Their rows of logits come first."""
        self.scoring: list[tuple[Completion, list[int]]] = []
        """Requests with prompt scoring, each with the target token of each of its rows."""
        drawn: list[int] = []
        scored: list[int] = []
        for request, span in work:
            offset, end = len(self.token_ids), span.start + span.count
            self.token_ids += request.tokens[span.start : end]
            if request.wants_scores:
                targets = request.prompt[span.start + 1 : end + 1]
                self.scoring.append((request, targets))
                scored += range(offset, offset + len(targets))
            if end == len(request.tokens):
                self.drawing.append(request)
                drawn.append(len(self.token_ids) - 1)
        self.rows = drawn + scored
        """Positions in `token_ids` whose logits are computed."""


class Scheduler:
    """Queues of waiting and running requests. `running[i]` owns cache slot i, so used slots are contiguous."""

    def __init__(self, cache: SlotCache, prefixes: PrefixCache, prefill_tokens: int) -> None:
        self.cache = cache
        self.prefixes = prefixes
        self.prefill_tokens = prefill_tokens
        self.waiting: list[Completion] = []
        self.running: list[Completion] = []
        self.prefix_hits = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def plan(self) -> tuple[list[Work], int]:
        """Admit waiting requests that fit. Return the spans of the next forward and how many of the first decode."""
        decoding: list[Work] = []
        prefilling: list[Work] = []
        # Remaining numbers of prefilled and scored tokens, reduced by `_prefill`.
        budgets = [self.prefill_tokens, SCORED_TOKENS]

        def schedule(request: Completion, slot: int) -> None:
            if len(request.tokens) - request.cached == 1 and not request.wants_scores:
                decoding.append((request, Span(slot, request.cached, 1)))
            else:
                prefilling.extend(self._prefill(request, slot, budgets))

        for slot, request in enumerate(self.running):
            schedule(request, slot)
        for request in self._admissible():
            if min(budgets) <= 0 or len(self.running) == self.cache.max_slots:
                break
            self._admit(request)
            schedule(request, len(self.running) - 1)
        work = decoding + prefilling
        length = max((span.start + span.count for _, span in work), default=0)
        self.cache.reserve(len(self.running), length)
        return work, len(decoding)

    def release(self, request: Completion) -> None:
        """Free the slot of a request. The last slot moves into the gap."""
        slot = self.running.index(request)
        last = self.running.pop()
        if last is not request:
            self.running[slot] = last
            self.cache.move(len(self.running), slot, last.cached)

    def drop_cancelled(self) -> None:
        """Remove requests that their caller has cancelled."""
        self.waiting = [request for request in self.waiting if not request.future.cancelled()]
        for request in [request for request in self.running if request.future.cancelled()]:
            self.release(request)

    def forget_cached(self) -> None:
        """Invalidate all cached keys and values after a weight change. Running sequences are recomputed."""
        self.prefixes.clear()
        self.cache.clear()
        for request in self.running:
            request.cached = 0
            # Without a generated token yet, the prompt is scored again under the new weights.
            if not request.logprobs:
                request.scores.clear()

    def computed(self, request: Completion, span: Span) -> None:
        """Record that a span has been computed. A prompt that is now complete is cached for its siblings."""
        request.cached = span.start + span.count
        complete = span.start < len(request.prompt) <= request.cached
        if complete and self.prefixes.keeps(request.prompt) and request.key not in self.prefixes.entries:
            self.prefixes.store(*request.key, self.cache.read(span.slot, len(request.prompt)))

    def _prefill(self, request: Completion, slot: int, budgets: list[int]) -> list[Work]:
        """Return the next span of a prompt within the budgets of prefilled and scored tokens; empty if none is left."""
        count = min(len(request.tokens) - request.cached, budgets[0])
        if request.wants_scores:
            count = min(count, budgets[1])
            budgets[1] -= count
        budgets[0] -= count
        return [(request, Span(slot, request.cached, count))] if count > 0 else []

    def _admissible(self) -> list[Completion]:
        """Return the waiting requests in order, except those whose prompt is being computed by a sibling.

        These wait until the prompt is in the prefix cache, so that it is computed once per group.
        """
        leading = {request.key for request in self.running if request.cached < len(request.prompt)}
        chosen = []
        for request in self.waiting:
            shares = self.prefixes.keeps(request.prompt) and not request.wants_scores
            if shares and request.key not in self.prefixes.entries:
                if request.key in leading:
                    continue
                leading.add(request.key)
            chosen.append(request)
        return chosen

    def _admit(self, request: Completion) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        if request.wants_scores:
            return
        found = self.prefixes.longest(request.salt, request.prompt)
        if found is None:
            return
        content, common = found
        # The last prompt token is always recomputed: the first token is sampled from its logits.
        request.cached = min(common, len(request.prompt) - 1)
        self.cache.reserve(len(self.running), request.cached)
        self.cache.fill(len(self.running) - 1, content, request.cached)
        self.prefix_hits += 1
