"""The embedded engine: continuous batching in one thread that alone touches the model."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from braidrl.configs.inference import InferenceConfig
from braidrl.inference.engines.cache import PrefixCache, SlotCache
from braidrl.inference.engines.model import SlotModel
from braidrl.inference.engines.request import Completion
from braidrl.inference.engines.sampling import SamplingParams, derived_seed, draw, score, uniforms
from braidrl.inference.engines.scheduler import ForwardBatch, Scheduler, Work
from braidrl.inference.engines.weights import ServedWeights

logger = logging.getLogger(__name__)

PREFIX_SHARE = 8
"""Kept prompts take at most this fraction (1/8) of the tokens that the slots can hold."""


@dataclass
class Stats:
    """Counters since the start."""

    generated_tokens: int = 0
    prompt_tokens: int = 0
    requests: int = 0
    weight_updates: int = 0
    busy_seconds: float = 0.0


@dataclass
class Command:
    """Something to do in the engine thread, between two forwards."""

    function: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.function())
        except Exception as error:
            self.future.set_exception(error)

    def fail(self, error: BaseException) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class EngineClosed(RuntimeError):
    """The engine ended before the request did."""


class TorchEngine:
    """Serves one model. Every method may be called from any thread; its future resolves in the engine's.

    `loaded` resolves when requests are taken, `ended` when the thread ends: to None after `close`, to the
    exception after a fault that it cannot survive. A fault in one forward fails the requests that shared it.
    """

    def __init__(self, config: InferenceConfig) -> None:
        self.config = config
        self.stats = Stats()
        self.version = 0
        self.paused = False
        self.asleep = False
        self.loaded: Future[None] = Future()
        self.ended: Future[None] = Future()
        self._inbox: queue.SimpleQueue[Completion | Command | None] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Load the model and begin to serve, in the engine's own thread."""
        self._thread.start()

    def close(self, timeout: float = 30.0) -> None:
        """End after the current forward; unfinished requests fail with `EngineClosed`."""
        self._closing = True
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def request(
        self, prompt: list[int], params: SamplingParams, *, id: str, salt: str = "", eos: bool = True
    ) -> Completion:
        """A request capped by the context limit; with `eos`, the model's own end tokens end it as well."""
        self.stats.requests += 1
        room = self.config.seq_len - len(prompt)
        return Completion(
            id=id,
            prompt=prompt,
            params=params,
            seed=derived_seed(self.config.seed, self.stats.requests) if params.seed is None else params.seed,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_ids=params.stop_token_ids | (self.model.eos_ids if eos else frozenset()),
            salt=salt,
        )

    def submit(self, request: Completion) -> "Future[Completion]":
        """Queue a request. Cancelling the future aborts it and frees its slot."""
        request.future.add_done_callback(lambda future: self._inbox.put(None) if future.cancelled() else None)
        self._send(request)
        return request.future

    def pause(self) -> "Future[None]":
        """Once it resolves, no token is generated until `resume`; requests wait."""
        return self._call(lambda: setattr(self, "paused", True))

    def resume(self) -> "Future[None]":
        """Go on generating."""
        return self._call(lambda: setattr(self, "paused", False))

    def sleep(self) -> "Future[None]":
        """Once it resolves, the caches have no memory and no token is generated until `wake_up`; requests wait, and
        those under way go on from recomputed keys and values. The weights stay: this engine has them on the host."""
        return self._call(self._sleep)

    def wake_up(self) -> "Future[None]":
        """Go on generating."""
        return self._call(lambda: setattr(self, "asleep", False))

    def update_weights(self, path: Path, version: int) -> "Future[int]":
        """Swap in the weights of a folder between two forwards; resolves to `version`.

        Sequences in flight go on under the new weights, from recomputed keys and values. `WeightsError` leaves
        everything as it was."""
        return self._call(lambda: self._update(path, version))

    def _call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Run `function` in the engine thread, between two forwards."""
        command = Command(function)
        self._send(command)
        return command.future

    def _send(self, item: "Completion | Command") -> None:
        self._inbox.put(item)
        if self.ended.done():
            self._fail_inbox()

    def _main(self) -> None:
        try:
            self._load()
            with torch.inference_mode():
                while not self._closing:
                    self._read_inbox()
                    if self.scheduler.busy and not self._held:
                        self._step()
            self._end(None)
        except BaseException as error:
            logger.exception("the inference engine failed")
            self._end(error)

    def _load(self) -> None:
        config = self.config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.model = SlotModel(config.model)
        self.weights = ServedWeights(self.model.module)
        cache = SlotCache(config.max_batch_size, config.seq_len)
        prefixes = PrefixCache(config.max_batch_size * config.seq_len // PREFIX_SHARE)
        self.scheduler = Scheduler(cache, prefixes, config.prefill_tokens)
        self.loaded.set_result(None)

    def _read_inbox(self) -> None:
        """Take what others sent; wait for it when there is nothing else to do."""
        while not self._closing:
            idle = self._held or not self.scheduler.busy
            try:
                item = self._inbox.get(block=idle)
            except queue.Empty:
                return
            if isinstance(item, Completion):
                self.scheduler.waiting.append(item)
            elif item is not None:
                item.run()
            self.scheduler.drop_cancelled()

    @property
    def _held(self) -> bool:
        return self.paused or self.asleep

    def _sleep(self) -> None:
        self.asleep = True
        self.scheduler.forget_cached()
        logger.info("asleep: %.1f MiB of caches are free", self.scheduler.cache.nbytes / 2**20)
        self.scheduler.cache.free()

    def _step(self) -> None:
        """One forward over all running requests, and one token for each that is up to date."""
        started = time.perf_counter()
        try:
            self._advance(*self.scheduler.plan())
        except Exception as error:
            if not self.scheduler.running:
                raise  # no request's fault: trying again would fail for ever
            logger.exception("a forward over %d requests failed", len(self.scheduler.running))
            for request in list(self.scheduler.running):
                self.scheduler.release(request)
                request.fail(error)
            self.scheduler.forget_cached()
        self.stats.busy_seconds += time.perf_counter() - started

    def _advance(self, work: list[Work], decoding: int) -> None:
        batch = ForwardBatch(work)
        logits = self.model.forward(batch.token_ids, batch.spans, decoding, self.scheduler.cache, batch.rows)
        for request, span in work:
            self.stats.prompt_tokens += max(0, min(span.start + span.count, len(request.prompt)) - span.start)
            self.scheduler.computed(request, span)
        at = len(batch.drawing)
        for request, targets in batch.scoring:
            width = request.params.prompt_logprobs or 0
            request.scores += score(logits[at : at + len(targets)], targets, width)
            at += len(targets)
        if batch.drawing:
            self._draw(batch.drawing, logits[: len(batch.drawing)])

    def _draw(self, requests: list[Completion], logits: torch.Tensor) -> None:
        positions = [len(request.tokens) for request in requests]
        randomness = uniforms([request.seed for request in requests], positions)
        draws = draw(logits, [request.params for request in requests], randomness)
        for request, token, logprob, candidates in zip(
            requests, draws.token_ids, draws.logprobs, draws.candidates
        ):
            request.add(token, logprob, candidates, self.version)
            self.stats.generated_tokens += 1
            if request.finish_reason is not None:
                self._finish(request)

    def _finish(self, request: Completion) -> None:
        self.scheduler.release(request)
        if request.future.set_running_or_notify_cancel():
            request.future.set_result(request)

    def _update(self, path: Path, version: int) -> int:
        self.weights.update(path)
        self.scheduler.forget_cached()
        self.version = version
        self.stats.weight_updates += 1
        return version

    def _end(self, error: BaseException | None) -> None:
        """Fail whatever waits, so that nobody waits for ever."""
        cause = error or EngineClosed("the inference engine was closed")
        if not self.loaded.done():
            self.loaded.set_exception(cause)
        else:
            for request in [*self.scheduler.running, *self.scheduler.waiting]:
                request.fail(cause)
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
        self._fail_inbox()

    def _fail_inbox(self) -> None:
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item.fail(EngineClosed("the inference engine has ended"))
