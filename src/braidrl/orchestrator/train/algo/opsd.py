"""On-policy self-distillation from demonstrations."""

import asyncio
from collections.abc import Mapping

from verifiers.v1 import Episode, Trace

from braidrl.configs.algorithm import OPSDConfig
from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.reference import Reference, score_traces
from braidrl.orchestrator.train.algo.routing import eligible_traces
from braidrl.utils.renderer import load_renderer


class OPSDAlgorithm(Algorithm[OPSDConfig]):
    """Self-distillation: reverse KL to the policy itself, conditioned on a demonstration.

    The policy samples without the demonstration. The signal of a token is
    g_t = log pi(y_t | hint, y_<t) - log pi(y_t | y_<t). The hint is a system message (`template`) that precedes the
    sample, whose tokens are scored exactly as sampled. Log-probs of the hint itself are discarded. The trainer
    computes g_t in the `ref_kl` component, as for `opd`.

    Source: SDFT (arXiv:2601.19897). The teacher is the live policy at the time when the episode arrives.

    Assumes that tasks have demonstrations (`demo_key`), and that hint and sample together leave room for one token in
    the context.

    Degenerate cases: a task without a demonstration fails its episode, which is recorded and excluded. A demonstration
    that does not change the policy's predictions gives 0.
    """

    async def setup(self) -> None:
        config = self.config
        policy = Reference.live(self.clients, max_concurrent=config.max_concurrent, timeout=config.timeout)
        self.policy = await self.resources.enter_async_context(policy)
        self.renderer = await asyncio.to_thread(load_renderer, self.clients.policy, config.renderer)
        await self.policy.score(self.hint("?"))  # fail at startup if the servers cannot score prompts

    async def score_episode(self, episode: Episode) -> None:
        traces = eligible_traces([episode])
        hints = [self.hint(demonstration_of(trace, self.config.demo_key)) for trace in traces]
        await score_traces(self.policy, traces, hints)

    def hint(self, demonstration: str) -> list[int]:
        """Return the token ids of the system message with a demonstration."""
        content = self.config.template.replace("{demonstration}", demonstration)
        return self.renderer.render_ids([{"role": "system", "content": content}])


def demonstration_of(trace: Trace, key: str) -> str:
    """Return the task's demonstration: `info[key]`, or else its field `key`. Raises `ValueError` without one."""
    data = trace.task.data
    info = getattr(data, "info", None)
    value = info.get(key) if isinstance(info, Mapping) else None
    value = getattr(data, key, None) if value is None else value
    if value is None:
        raise ValueError(
            f"the task of trace {trace.id} has no demonstration {key!r}, neither in its info nor as a field (it has "
            f"{', '.join(type(data).model_fields)}); set algo.demo_key to the field with the demonstration"
        )
    return str(value)
