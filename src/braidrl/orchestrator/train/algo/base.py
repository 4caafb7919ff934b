"""Base class of algorithms, which write a per-token training signal on the message graphs of finished episodes."""

from contextlib import AsyncExitStack
from typing import Any, ClassVar, Generic, TypeVar

from verifiers.v1 import Episode

from braidrl.configs.algorithm import ActionLossType, Barrier, BaseAlgorithmConfig
from braidrl.orchestrator.train.algo.routing import stamp_action_weights, trainable_traces

ConfigT = TypeVar("ConfigT", bound=BaseAlgorithmConfig)


class Algorithm(Generic[ConfigT]):
    """Base class of algorithms. Each source of a run has one instance.

    A subclass overrides the hook that is called when the data for its signal is complete:

    - `score_episode`, for each episode when it arrives: signals of a single rollout, such as scores of a teacher.
    - `score_group`, when the last episode of a group has arrived: credit relative to siblings.
    - `score_batch`, when a batch is complete: credit relative to the whole batch, or dependent on dispatch order.

    Hooks annotate the traces in place (`braidrl.orchestrator.train.algo.routing`). The pipeline calls
    `finalize_episode` for every episode, then `score_group`, then `score_batch`. It waits only for the widest hook
    that a class overrides. The config class must declare this hook's `barrier` (a narrower one raises an error) and
    may wait for less with some settings (`waits_for`). `score_group` also receives failed episodes, so that groups are
    complete. `eligible_traces` selects the traces that may be compared.
    """

    order_matters: ClassVar[bool] = False
    """True if the signal of a trace depends on the traces scored before it."""

    clients: Any
    """Clients of the live policy, owned by the caller, or None if no model is served."""
    action_loss_type: ActionLossType
    """Loss component of the sampled tokens."""
    barrier: Barrier
    """Set of episodes that must be complete before tokens without signal are dropped. Wider hooks are not called."""
    resources: AsyncExitStack
    """Resources opened by `setup`, such as connections."""

    def __init__(self, config: ConfigT, clients: Any = None) -> None:
        self.config = config
        self.clients = clients
        self.action_loss_type = config.action_loss_type
        self.barrier = self._barrier()
        self.resources = AsyncExitStack()

    async def setup(self) -> None:
        """Open the resources of the algorithm. Called once, before the first episode."""

    async def close(self) -> None:
        """Close `resources`. Called once, after the last episode."""
        await self.resources.aclose()

    async def score_episode(self, episode: Episode) -> None:
        """Score a single episode. Called only for episodes with trainable sampled tokens."""

    async def score_group(self, episodes: list[Episode]) -> None:
        """Score all episodes of a group relative to each other."""

    async def score_batch(self, episodes: list[Episode]) -> None:
        """Score all episodes of this source that train in one optimizer step, in dispatch order.

        Each episode is passed once, as a whole, with the first batch that contains one of its traces. Traces of it
        that train in a later batch keep this signal. Episodes that become too old to train are never passed. Traces
        without signal are removed afterwards, without replacement.
        """

    async def finalize_episode(self, episode: Episode) -> None:
        """Route the sampled tokens of an episode to their loss component, then call `score_episode`.

        Does nothing for an episode without trainable sampled tokens.
        """
        traces = trainable_traces(episode)
        if not traces:
            return
        for trace in traces:
            stamp_action_weights(trace, self.action_loss_type)
        await self.score_episode(episode)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON-serialisable data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""

    def metrics(self) -> dict[str, float]:
        """Return the metrics since the previous call, for the log line of a step."""
        return {}

    def _barrier(self) -> Barrier:
        """Return the barrier of the widest overridden hook, or `config.waits_for` if that is narrower.

        Raises `TypeError` if the config class declares a narrower barrier, or `needs_group` without a hook that
        compares siblings.
        """
        barriers: list[Barrier] = ["episode", "group", "batch"]
        overridden = [
            barrier
            for barrier in barriers
            if getattr(type(self), f"score_{barrier}") is not getattr(Algorithm, f"score_{barrier}")
        ]
        widest = overridden[-1] if overridden else "episode"
        name, config = type(self).__name__, type(self.config)
        if barriers.index(widest) > barriers.index(config.barrier):
            raise TypeError(
                f"{name} overrides score_{widest}, but {config.__name__}.barrier is {config.barrier!r}, which is "
                f'narrower; set barrier: ClassVar[Barrier] = "{widest}" in the config class'
            )
        if widest == "episode" and config.needs_group:
            raise TypeError(
                f"{config.__name__}.needs_group is True, but {name} overrides neither score_group nor score_batch, "
                "so it cannot compare siblings; override one, or set needs_group: ClassVar[bool] = False"
            )
        return min(widest, self.config.waits_for, key=barriers.index)
