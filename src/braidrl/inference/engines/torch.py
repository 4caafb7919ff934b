"""Embedded engine: continuous batching in a dedicated thread, the only one that uses the model."""

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
"""Divisor of the slot capacity in tokens that gives the size of the prefix cache (1/8 of the capacity)."""


@dataclass
class Stats:
    """Counters since the engine started."""

    generated_tokens: int = 0
    prompt_tokens: int = 0
    requests: int = 0
    weight_updates: int = 0
    busy_seconds: float = 0.0


@dataclass
class Command:
    """Function to run in the engine thread between two forwards."""

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
    """Raised for a request that was unfinished when the engine ended."""


class TorchEngine:
    """Engine that serves one model. Methods are thread-safe; their futures resolve in the engine thread.

    `loaded` resolves when the engine accepts requests. `ended` resolves when the thread ends: to None after `close`,
    or to the exception of a fatal error. An error in one forward fails only the requests in that forward.
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
        """Load the model and start serving in the engine thread."""
        self._thread.start()

    def close(self, timeout: float = 30.0) -> None:
        """End the engine after the current forward. Unfinished requests fail with `EngineClosed`."""
        self._closing = True
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def request(
        self, prompt: list[int], params: SamplingParams, *, id: str, salt: str = "", eos: bool = True
    ) -> Completion:
        """Create a request, capped by the context limit. With `eos`, the model's end-of-sequence tokens stop it."""
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
        # An empty item wakes the engine thread so that it drops the cancelled request.
        request.future.add_done_callback(lambda future: self._inbox.put(None) if future.cancelled() else None)
        self._send(request)
        return request.future

    def pause(self) -> "Future[None]":
        """Stop generating until `resume`. Requests wait. Resolves when no more tokens are generated."""
        return self._call(lambda: setattr(self, "paused", True))

    def resume(self) -> "Future[None]":
        """Continue generating after `pause`."""
        return self._call(lambda: setattr(self, "paused", False))

    def sleep(self) -> "Future[None]":
        """Free the caches and stop generating until `wake_up`. Resolves when the memory is free.

        Requests wait; running ones continue later with recomputed keys and values. The weights are not freed, because
        this engine keeps them in host memory.
        """
        return self._call(self._sleep)

    def wake_up(self) -> "Future[None]":
        """Continue generating after `sleep`."""
        return self._call(lambda: setattr(self, "asleep", False))

    def update_weights(self, path: Path, version: int) -> "Future[int]":
        """Swap in the weights of a folder between two forwards. Resolves to `version`.

        Running sequences continue under the new weights with recomputed keys and values. After a `WeightsError` the
        old weights are still served.
        """
        return self._call(lambda: self._update(path, version))

    def _call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Run `function` in the engine thread, between two forwards."""
        command = Command(function)
        self._send(command)
        return command.future

    def _send(self, item: "Completion | Command") -> None:
        self._inbox.put(item)
        # Check after putting: if the thread has ended, this item must be failed here.
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
        """Handle queued requests and commands. Block until one arrives if there is nothing to compute."""
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
        logger.info("asleep: freed %.1f MiB of caches", self.scheduler.cache.nbytes / 2**20)
        self.scheduler.cache.free()

    def _step(self) -> None:
        """Run one forward over all running requests and sample a token for each that has no prompt left to compute."""
        started = time.perf_counter()
        try:
            self._advance(*self.scheduler.plan())
        except Exception as error:
            if not self.scheduler.running:
                raise  # no request caused the error, so every retry would fail
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
        # The rows of sampling requests come first, then those of prompt scoring.
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
        """Fail all outstanding requests and commands, so that no caller blocks forever."""
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
