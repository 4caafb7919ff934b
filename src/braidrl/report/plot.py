"""The reward curve of a run: a picture for the run folder, a small one for the terminal."""

from collections.abc import Sequence
from pathlib import Path

TERMINAL_SIZE = (72, 14)
"""Characters, lines."""


def save_reward_plot(
    path: Path, steps: Sequence[int], rewards: Sequence[float], heldout: Sequence[tuple[int, float, float]]
) -> None:
    """Write a PNG: mean reward of every training batch, and held-out points `(version, mean, half 95% interval)`."""
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
    """The same curve in characters."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(*TERMINAL_SIZE)
    plotext.plot(list(steps), list(rewards), marker="braille")
    plotext.ylim(0, 1)
    plotext.title("mean reward of the training batches")
    plotext.xlabel("step")
    return plotext.uncolorize(plotext.build())
