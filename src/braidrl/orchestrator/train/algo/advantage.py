"""The arithmetic of credit: pure functions on float64 arrays, one value per compared trace."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

EPSILON = 1e-6
"""What is added to a standard deviation before it divides."""


def group_advantages(rewards: ArrayLike) -> Array:
    """Reward minus the mean reward of those compared: A_i = r_i - mean(r), without division by a deviation.

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


def standardized_advantages(rewards: ArrayLike) -> Array:
    """Reward minus the mean, in units of the deviation: A_i = (r_i - mean(r)) / (std(r) + 1e-6).

    The deviation is the sample's, sqrt(sum (r_i - mean)^2 / (N - 1)), in two passes.

    Args:
        rewards: finite, one per trace of a group or of a batch; may be empty.

    Returns:
        f64[N]; equal rewards, and one alone, give exact zeros.
    """
    centred = group_advantages(rewards)
    if not centred.any():
        return centred
    return centred / (np.std(_finite(rewards), ddof=1) + EPSILON)


def weighted_advantages(rewards: ArrayLike, tokens: ArrayLike) -> Array:
    """Reward minus the token-weighted mean: A_i = r_i - sum(L_i r_i) / sum(L_i), so that sum(L_i A_i) = 0.

    Args:
        rewards: finite, one per trace; may be empty.
        tokens: L, trainable tokens of each trace. Where there are none at all, the plain mean is the baseline.

    Returns:
        f64[N]; equal rewards give exact zeros.
    """
    values, weights = _finite(rewards), np.asarray(tokens, dtype=np.float64).reshape(-1)
    if all_equal(values) or not weights.any():
        return group_advantages(values)
    return values - (weights * values).sum() / weights.sum()


def mean_normalized_advantages(rewards: ArrayLike) -> Array:
    """A_i = (r_i - m) / m for the mean m; zeros where m <= 0.

    Args:
        rewards: finite, one per trace; may be empty.

    Returns:
        f64[N]; equal rewards and a group of one give exact zeros.
    """
    values = _finite(rewards)
    if all_equal(values) or values.mean() <= 0:
        return np.zeros_like(values)
    return (values - values.mean()) / values.mean()


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
