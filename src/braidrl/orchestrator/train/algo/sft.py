"""Hard distillation: imitate a frozen model's rollouts."""

from verifiers.v1 import Episode

from braidrl.configs.algorithm import SFTDistillConfig
from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.reference import Reference


class SFTDistillAlgorithm(Algorithm[SFTDistillConfig]):
    """Hard distillation: cross-entropy l = -log pi(y_t) on every token sampled by a frozen model.

    Good and bad rollouts are imitated alike: rewards are recorded but not used. There are no advantages and no
    importance ratios, and `group_size` only sets the number of samples per task.

    Source: sequence-level distillation (arXiv:1606.07947).

    Assumes that the frozen model has the policy's tokenizer, since its token ids are used as targets. Checked at
    startup by `Reference.check_tokenizer`.

    Degenerate cases: none.
    """

    async def setup(self) -> None:
        source = self.config.sampling.source
        assert source != "policy"  # rejected by the config
        async with Reference.frozen(source) as teacher:
            await teacher.check_tokenizer(self.clients.policy)

    async def score_episode(self, episode: Episode) -> None:
        """Do nothing: `finalize_episode` has already routed the sampled tokens to `ce`."""
