"""Reward curve of a run, as a PNG file or as text for the terminal."""

from collections.abc import Sequence
from pathlib import Path

TERMINAL_SIZE = (72, 14)
"""Width in characters and height in lines."""


def save_reward_plot(
    path: Path, steps: Sequence[int], rewards: Sequence[float], heldout: Sequence[tuple[int, float, float]]
) -> None:
    """Write a PNG with the mean reward of each training batch and the held-out rewards.

    Args:
        heldout: (version, mean, half-width of the 95% interval) of each evaluation.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120, layout="constrained")
    axes.plot(steps, rewards, marker=".", label="training batches")
    versions, means, intervals = zip(*heldout, strict=True) if heldout else ((), (), ())
    axes.errorbar(versions, means, yerr=intervals, fmt="o", capsize=3, label="held-out tasks (95% interval)")
    axes.set(xlabel="optimizer step", ylabel="mean reward", ylim=(0, 1.02), title="Reward")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path)
    pyplot.close(figure)


def terminal_plot(steps: Sequence[int], rewards: Sequence[float]) -> str:
    """Return the reward curve as text."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(*TERMINAL_SIZE)
    plotext.plot(list(steps), list(rewards), marker="braille")
    plotext.ylim(0, 1)
    plotext.title("mean reward of the training batches")
    plotext.xlabel("step")
    return plotext.uncolorize(plotext.build())
