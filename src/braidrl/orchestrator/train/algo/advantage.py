"""The arithmetic of credit: pure functions on float64 arrays, one value per compared trace."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def group_advantages(rewards: ArrayLike) -> Array:
    """Reward minus the mean reward of the group: A_i = r_i - mean(r), without division by a deviation.

    Args:
        rewards: finite, one per trace; may be empty.

    Returns:
        f64[N]. Equal rewards and a group of one give exact zeros: the rounding of a mean must not pass for
        signal.
    """
    values = _finite(rewards)
    if all_equal(values):
        return np.zeros_like(values)
    return values - values.mean()


def all_equal(values: Array) -> bool:
    """Whether a comparison carries no signal; true of none and of one."""
    return bool((values == values[:1]).all())


def _finite(rewards: ArrayLike) -> Array:
    values = np.asarray(rewards, dtype=np.float64).reshape(-1)
    if not np.isfinite(values).all():
        raise ValueError(
            f"rewards {values.tolist()} must be finite; leave out traces without a reward before comparing"
        )
    return values
