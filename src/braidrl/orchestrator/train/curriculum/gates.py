"""Built-in admission gates: by advantage and by mean reward."""

from collections.abc import Sequence

from verifiers.v1 import Episode

from braidrl.configs.curriculum.gates import AdvRangeGateConfig, OnlineDifficultyGateConfig
from braidrl.orchestrator.train.algo.routing import eligible_traces, trainable_nodes
from braidrl.orchestrator.train.curriculum.base import AdmissionGate
from braidrl.orchestrator.train.curriculum.rewards import between, mean_reward


class AdvRangeGate(AdmissionGate[AdvRangeGateConfig]):
    """Rejects a group if the advantage of every sampled token is in [reject_min, reject_max].

    Groups without advantages are admitted. This is the case for algorithms that assign none (`opd`, `opsd`, `sft`) or
    only for a whole batch (`rae`, and `grpo` and `echo` with a batch norm).

    Metric: `unjudged` (groups without advantages since the last step).
    """

    def __init__(self, config: AdvRangeGateConfig) -> None:
        super().__init__(config)
        self._unjudged = 0

    def admits(self, group: Sequence[Episode]) -> bool:
        nodes = (node for trace in eligible_traces(group) for node in trainable_nodes(trace))
        advantages = [advantage for node in nodes for advantage in node.advantages or ()]
        self._unjudged += not advantages
        low, high = self.config.reject_min, self.config.reject_max
        return not advantages or not all(low <= advantage <= high for advantage in advantages)

    def metrics(self) -> dict[str, float]:
        unjudged, self._unjudged = self._unjudged, 0
        return {"unjudged": float(unjudged)}


class OnlineDifficultyGate(AdmissionGate[OnlineDifficultyGateConfig]):
    """Admits a group if above < mean reward < below, so that its task is neither solved nor hopeless.

    The mean is over the eligible traces. The gate needs no advantages, so it works with every algorithm.
    """

    def admits(self, group: Sequence[Episode]) -> bool:
        mean = mean_reward(group)
        return mean is not None and between(mean, self.config.above, self.config.below)
