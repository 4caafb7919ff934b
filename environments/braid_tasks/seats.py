"""Seats of an environment with several agents."""

import verifiers.v1 as vf


def is_pinned(seat: vf.AgentConfig) -> bool:
    """Return True if a seat has its own model or endpoint.

    Such a model is frozen: its tokens were not sampled from the policy that the run trains. All other seats use the
    run's model.
    """
    return seat.model is not None or seat.client is not None
