"""Hard distillation: imitate a frozen model's rollouts."""

from verifiers.v1 import Episode

from braidrl.configs.algorithm import SFTDistillConfig
from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.reference import Reference


class SFTDistillAlgorithm(Algorithm[SFTDistillConfig]):
    """Every token that the frozen model sampled trains with cross-entropy, at weight 1: l = -log pi(y_t).

    Source: sequence-level distillation (arXiv:1606.07947). There is no advantage, no importance ratio and no
    group; `group_size` only fans out sampling.

    Assumes that the frozen model has the policy's tokenizer, since its token ids are trained as they are;
    another one is refused at the start (`Reference.check_tokenizer`). It imitates good and bad rollouts
    alike; a reward is recorded but not used.

    Degenerate cases: none of its own.
    """

    async def setup(self) -> None:
        source = self.config.sampling.source
        assert source != "policy"  # the config refuses it
        async with Reference.frozen(source) as teacher:
            await teacher.check_tokenizer(self.clients.policy)

    async def score_episode(self, episode: Episode) -> None:
        """Nothing to add: its sampled tokens are routed to cross-entropy already."""
