"""The contract of an algorithm: finished episodes in, a per-token signal on their message graphs out."""

from contextlib import AsyncExitStack
from typing import Any, ClassVar, Generic, TypeVar

from verifiers.v1 import Episode

from braidrl.configs.algorithm import ActionLossType, Barrier, BaseAlgorithmConfig
from braidrl.orchestrator.train.algo.routing import stamp_action_weights, trainable_traces

ConfigT = TypeVar("ConfigT", bound=BaseAlgorithmConfig)


class Algorithm(Generic[ConfigT]):
    """One per environment. Subclass it and override the hook whose timing fits the signal:

    - `score_episode`, as each episode arrives: rollout-local work, model calls;
    - `score_group`, when the last episode of a group has arrived: credit relative to siblings;
    - `score_batch`, when a whole batch is there: credit relative to all that trains with it, or that must follow the
      order of dispatch.

    The pipeline waits for the widest of the hooks that a class overrides, and for nothing more: its config declares
    that `barrier` (a narrower one is refused), and may say that its settings wait for less (`waits_for`). All hooks
    annotate the traces in place (`braidrl.orchestrator.train.algo.routing`). The pipeline calls `finalize_episode` for
    every episode, then `score_group`, then `score_batch`. Episodes with errors reach `score_group` as well, so that an
    algorithm sees its whole group; `eligible_traces` picks what may be compared.
    """

    order_matters: ClassVar[bool] = False
    """Whether a trace's signal depends on the traces that were scored before it."""

    clients: Any
    """Clients of the live policy, owned by the host; None where no model is served (tests)."""
    action_loss_type: ActionLossType
    """The loss component that consumes sampled tokens."""
    barrier: Barrier
    """What the pipeline waits for before it drops what carries no signal; it calls no wider hook."""
    resources: AsyncExitStack
    """Connections and the like that `setup` opens."""

    def __init__(self, config: ConfigT, clients: Any = None) -> None:
        self.config = config
        self.clients = clients
        self.action_loss_type = config.action_loss_type
        self.barrier = self._barrier()
        self.resources = AsyncExitStack()

    async def setup(self) -> None:
        """Build what the algorithm needs from its own config, once, before the first episode."""

    async def close(self) -> None:
        """Let go of `resources`, once, after the last episode."""
        await self.resources.aclose()

    async def score_episode(self, episode: Episode) -> None:
        """Rollout-local signal of an episode that has trainable sampled tokens."""

    async def score_group(self, episodes: list[Episode]) -> None:
        """Group-relative signal of all episodes of one task that were sampled to be compared."""

    async def score_batch(self, episodes: list[Episode]) -> None:
        """Signal relative to all episodes of this environment that train in one optimizer step, in dispatch order.

        An episode comes once and whole, with the first batch that holds one of its traces; those that train in a
        later batch keep the signal that they get here. What gets too old for any batch never comes. Afterwards the
        traces without signal leave the batch smaller.
        """

    async def finalize_episode(self, episode: Episode) -> None:
        """Route an arrived episode's sampled tokens to their loss component and score it; an episode without
        trainable sampled tokens is left alone."""
        traces = trainable_traces(episode)
        if not traces:
            return
        for trace in traces:
            stamp_action_weights(trace, self.action_loss_type)
        await self.score_episode(episode)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as JSON-serialisable data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""

    def metrics(self) -> dict[str, float]:
        """Scalars since the last call, for the step's log line."""
        return {}

    def _barrier(self) -> Barrier:
        """That of the widest hook that the class overrides, or less if its settings say so.

        Raises `TypeError` where the config class declares a narrower one, or siblings that nothing compares.
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
                f"{name} has a score_{widest}, but {config.__name__}.barrier is {config.barrier!r}, which does not "
                f'wait for it; set barrier: ClassVar[Barrier] = "{widest}" in the config class'
            )
        if widest == "episode" and config.needs_group:
            raise TypeError(
                f"{config.__name__}.needs_group says that {name} compares siblings, but it has neither a score_group "
                "nor a score_batch that would; write one, or set needs_group: ClassVar[bool] = False"
            )
        return min(widest, self.config.waits_for, key=barriers.index)
