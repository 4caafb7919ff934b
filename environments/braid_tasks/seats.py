"""Who plays a seat of an environment with several agents."""

import verifiers.v1 as vf


def is_pinned(seat: vf.AgentConfig) -> bool:
    """Whether a seat names its own model or endpoint. Such a model is frozen: its tokens were not sampled
    from the policy that a run trains. Every other seat late-binds to the run's model."""
    return seat.model is not None or seat.client is not None
