"""Advantage formulas: pure functions of float64 arrays, with one value per compared trace."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

EPSILON = 1e-6
"""Added to a standard deviation before division."""


def group_advantages(rewards: ArrayLike) -> Array:
    """Compute the reward minus the mean reward, A_i = r_i - mean(r).

    Args:
        rewards: [N], finite, one per trace. N may be 0.

    Returns:
        f64[N]. Equal rewards and a single reward give exactly 0.
    """
    values = _finite(rewards)
    if all_equal(values):
        return np.zeros_like(values)  # the rounded mean of equal floats may differ from each of them
    return values - values.mean()


def standardized_advantages(rewards: ArrayLike) -> Array:
    """Compute standardised rewards, A_i = (r_i - mean(r)) / (std(r) + 1e-6).

    std is the sample standard deviation, sqrt(sum (r_i - mean)^2 / (N - 1)).

    Args:
        rewards: [N], finite, one per trace of a group or of a batch. N may be 0.

    Returns:
        f64[N]. Equal rewards and a single reward give exactly 0.
    """
    centred = group_advantages(rewards)
    if not centred.any():
        return centred
    return centred / (np.std(_finite(rewards), ddof=1) + EPSILON)


def weighted_advantages(rewards: ArrayLike, tokens: ArrayLike) -> Array:
    """Compute the reward minus the token-weighted mean, A_i = r_i - sum(L_i r_i) / sum(L_i).

    The advantages sum to zero over the tokens of the group: sum(L_i A_i) = 0.

    Args:
        rewards: [N], finite, one per trace. N may be 0.
        tokens: [N], the numbers L of trainable tokens. If all are 0, the baseline is the unweighted mean.

    Returns:
        f64[N]. Equal rewards give exactly 0.
    """
    values, weights = _finite(rewards), np.asarray(tokens, dtype=np.float64).reshape(-1)
    if all_equal(values) or not weights.any():
        return group_advantages(values)
    return values - (weights * values).sum() / weights.sum()


def mean_normalized_advantages(rewards: ArrayLike) -> Array:
    """Compute A_i = (r_i - m) / m for the mean reward m, or zeros if m <= 0.

    Args:
        rewards: [N], finite, one per trace. N may be 0.

    Returns:
        f64[N]. Equal rewards and a single reward give exactly 0.
    """
    values = _finite(rewards)
    if all_equal(values) or values.mean() <= 0:
        return np.zeros_like(values)
    return (values - values.mean()) / values.mean()


def all_equal(values: Array) -> bool:
    """Return True if all values are equal, so that a comparison has no signal. True for zero or one value."""
    return bool((values == values[:1]).all())


def _finite(rewards: ArrayLike) -> Array:
    values = np.asarray(rewards, dtype=np.float64).reshape(-1)
    if not np.isfinite(values).all():
        raise ValueError(
            f"cannot compare rewards {values.tolist()}: they must be finite; exclude traces without a reward first"
        )
    return values
