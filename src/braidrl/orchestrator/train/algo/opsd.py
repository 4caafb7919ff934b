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
    """The policy samples without help, and every sampled token learns from
    g_t = log pi(y_t | hint, y_<t) - log pi(y_t | y_<t): what the policy itself would prefer once it has seen a
    demonstration.

    The hint is a system message (`template`) in front of the whole sample, which is scored token for token as
    it was sampled; the hint's own log-probs are dropped. The `ref_kl` component does the rest, as for `opd`.

    Source: SDFT (arXiv:2601.19897). The teacher is the live policy, as it is when the episode arrives.

    Assumes that tasks carry demonstrations (`demo_key`), and that hint and sample together leave room for one
    token in the context.

    Degenerate cases: a task without a demonstration is an error of its episode, which is recorded and left
    out; a demonstration that changes nothing gives 0.
    """

    async def setup(self) -> None:
        config = self.config
        policy = Reference.live(self.clients, max_concurrent=config.max_concurrent, timeout=config.timeout)
        self.policy = await self.resources.enter_async_context(policy)
        self.renderer = await asyncio.to_thread(load_renderer, self.clients.policy, config.renderer)
        await self.policy.score(self.hint("?"))  # fails here where the policy's servers cannot score

    async def score_episode(self, episode: Episode) -> None:
        traces = eligible_traces([episode])
        hints = [self.hint(demonstration_of(trace, self.config.demo_key)) for trace in traces]
        await score_traces(self.policy, traces, hints)

    def hint(self, demonstration: str) -> list[int]:
        """Token ids of the system message that shows a demonstration."""
        content = self.config.template.replace("{demonstration}", demonstration)
        return self.renderer.render_ids([{"role": "system", "content": content}])


def demonstration_of(trace: Trace, key: str) -> str:
    """The task's demonstration: `info[key]`, else its field `key`. Raises `ValueError` where there is none."""
    data = trace.task.data
    info = getattr(data, "info", None)
    value = info.get(key) if isinstance(info, Mapping) else None
    value = getattr(data, key, None) if value is None else value
    if value is None:
        raise ValueError(
            f"the task of trace {trace.id} has no demonstration {key!r}, neither in its info nor as a field of its "
            f"own (it has {', '.join(type(data).model_fields)}); set algo.demo_key to the field that holds it"
        )
    return str(value)
