"""On-policy distillation."""

from verifiers.v1 import Episode

from braidrl.configs.algorithm import OPDConfig
from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.reference import Reference, score_traces
from braidrl.orchestrator.train.algo.routing import eligible_traces


class OPDAlgorithm(Algorithm[OPDConfig]):
    """The policy samples, and every sampled token learns from g_t = log pi_teacher(y_t) - log pi(y_t): the
    gradient of the reverse KL to the teacher, estimated at the token that was drawn.

    The teacher's log-probs are attached here; the trainer forms g_t against its own policy (the `ref_kl`
    component). There is no advantage, and the group size only fans out sampling.

    Source: on-policy distillation (Thinking Machines, 2025; MiniLLM, arXiv:2306.08543).

    Assumes a teacher with the policy's tokenizer, refused at the start otherwise
    (`Reference.check_tokenizer`), whose context holds a whole sample and one token more.

    Degenerate cases: a teacher that equals the policy gives 0. A teacher that is down, slow or wrong fails the
    episode, which is recorded and left out.
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
