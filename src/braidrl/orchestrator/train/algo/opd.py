"""On-policy distillation."""

from verifiers.v1 import Episode

from braidrl.configs.algorithm import OPDConfig
from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.reference import Reference, score_traces
from braidrl.orchestrator.train.algo.routing import eligible_traces


class OPDAlgorithm(Algorithm[OPDConfig]):
    """On-policy distillation: reverse KL to a teacher on the tokens that the policy sampled.

    The signal of a token is g_t = log pi_teacher(y_t) - log pi(y_t), a single-sample estimate of the gradient of the
    reverse KL. This class attaches the teacher's log-probs. The trainer computes g_t with its current policy (the
    `ref_kl` component). There are no advantages, and `group_size` only sets the number of samples per task.

    Source: on-policy distillation (Thinking Machines, 2025; MiniLLM, arXiv:2306.08543).

    Assumes that the teacher has the policy's tokenizer (checked at startup by `Reference.check_tokenizer`) and a
    context of at least the sample length plus one token.

    Degenerate cases: a teacher equal to the policy gives 0. If the teacher is down, too slow or returns invalid data,
    the episode fails. It is recorded and excluded.
    """

    async def setup(self) -> None:
        config = self.config
        teacher = Reference.frozen(
            config.teacher, max_concurrent=config.max_concurrent, timeout=config.timeout
        )
        self.teacher = await self.resources.enter_async_context(teacher)
        await self.teacher.check_tokenizer(self.clients.policy)

    async def score_episode(self, episode: Episode) -> None:
        await score_traces(self.teacher, eligible_traces([episode]))
