"""A gate by how hard a task was."""

from collections.abc import Sequence

from verifiers.v1 import Episode

from braidrl.configs.curriculum.gates import OnlineDifficultyGateConfig
from braidrl.orchestrator.train.curriculum.base import AdmissionGate
from braidrl.orchestrator.train.curriculum.rewards import between, mean_reward


class OnlineDifficultyGate(AdmissionGate[OnlineDifficultyGateConfig]):
    """Admits a group when above < mean reward < below: a task that is neither solved nor hopeless.

    The mean is over the traces that take part in training. It needs no advantages, so it works with every algorithm.
    """

    def admits(self, group: Sequence[Episode]) -> bool:
        mean = mean_reward(group)
        return mean is not None and between(mean, self.config.above, self.config.below)
