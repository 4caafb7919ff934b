"""`braid score EPISODES --algo.type TYPE [--against.type TYPE]`: run algorithms on recorded episodes."""

import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.core.load import load_config
from braidrl.configs.score import ScoreConfig
from braidrl.report.table import columns, print_table

if TYPE_CHECKING:
    from verifiers.v1 import Trace

    from braidrl.orchestrator.train.rescore import RecordedGroup, Replay

LEGEND = """\
Each column is a trace: its reward, the advantage of its sampled tokens (~: mean of different values), and the weights
that the algorithm sets in a loss component, if any (n x w: n tokens of weight w)."""


def main(args: list[str]) -> int:
    if args and not args[0].startswith(("-", "@")):
        args = ["--episodes", *args]
    config = load_config(ScoreConfig, args, "braid score")
    if config.output is not None and config.output.exists():
        raise ConfigError("output", f"{config.output} exists; choose a new file")
    replays = score(config)
    print_groups(replays, config.show)
    print_summary(replays)
    if config.output is not None:
        from braidrl.orchestrator.pipeline.records import append_records
        from braidrl.orchestrator.train.rescore import signal_records

        append_records(config.output, signal_records(replays))
        print(f"\nsignal of every token: {config.output}")
    return 0


def score(config: ScoreConfig) -> "list[Replay]":
    """Run `config.algo`, then `config.against`, and return the results. Raises `ConfigError` without episodes."""
    import asyncio

    from braidrl.orchestrator.train.rescore import read_groups

    try:
        recorded = read_groups(config.episodes)
    except (OSError, ValueError) as error:
        raise ConfigError("episodes", str(error)) from None
    groups = [group for group in recorded if config.source in (None, group.source)]
    if not groups:
        sources = ", ".join(sorted({repr(group.source) for group in recorded}))
        raise ConfigError(
            "source",
            f"{config.episodes} has no episode of source {config.source!r}; it has episodes of {sources}",
        )
    replays: list[Replay] = []
    asyncio.run(_replay(config, groups, replays))
    return replays


async def _replay(config: ScoreConfig, groups: "list[RecordedGroup]", replays: "list[Replay]") -> None:
    """Append the results to `replays`.

    They are not returned, because `asyncio.run` formats the result of its task with `repr`, which takes long for them.
    """
    from braidrl.orchestrator.train.rescore import replay

    agents = sorted({trace.agent.name for group in groups for trace in group.traces})
    for role, algo in (("algo", config.algo), ("against", config.against)):
        if algo is None:
            continue
        try:
            algo.check_agents(agents)
        except ValueError as error:
            raise ConfigError(role, str(error)) from None
        replays.append(await replay(role, algo, groups))


def print_groups(replays: "list[Replay]", show: int) -> None:
    """Print `show` groups, evenly spread over the recording, each as a table with one column per trace."""
    total = len(replays[0].groups)
    count = min(show, total)
    if not count:
        return
    print(LEGEND)
    if count < total:
        print(f"{count} of {total} groups, evenly spread; --show {total} prints all.")
    for index in (number * (total - 1) // max(count - 1, 1) for number in range(count)):
        group = replays[0].groups[index]
        has_source = group.id.startswith(group.source)
        print(f"\n{group.id if has_source else f'{group.source} {group.id}'}")
        rows = list(group_rows([(each.title, each.groups[index]) for each in replays]))
        for line in columns(rows, shutil.get_terminal_size((110, 24)).columns):
            print(line)
    print()


def group_rows(scored: "Sequence[tuple[str, RecordedGroup]]") -> Iterator[tuple[str, list[str]]]:
    """Yield (label, one cell per trace) of each row of a group's table.

    Args:
        scored: (title of an algorithm, the group as scored by it).
    """
    from braidrl.orchestrator.train.algo.routing import ineligibility
    from braidrl.orchestrator.train.samples import CE, RL

    group = scored[0][1]
    agents = [trace.agent.name for trace in group.traces]
    if len(set(agents)) > 1:
        yield "agent", agents
    yield "reward", [f"{trace.reward:.3g}" for trace in group.traces]
    left_out = [ineligibility(episode, trace) for episode in group.episodes for trace in episode.traces]
    if any(left_out):
        yield "left out", [reason or "" for reason in left_out]
    for title, each in scored:
        yield title, [advantage(trace) for trace in each.traces]
        written = {name for trace in each.traces for node in trace.nodes for name in node.loss_weights or {}}
        for component in (RL, CE):
            if component in written:
                yield f"  {component} weights", [weights(trace, component) for trace in each.traces]


def advantage(trace: "Trace") -> str:
    """Format the advantage of a trace's sampled tokens, or `~` and their mean if they differ. `-`: it has none."""
    from braidrl.orchestrator.train.rescore import advantages_of

    values = advantages_of(trace)
    if values is None:
        return "-"
    if not values.any():
        return "0"
    return ("" if (values == values[0]).all() else "~") + f"{values.mean():+.3g}"


def weights(trace: "Trace", component: str) -> str:
    """Format the number of tokens with a positive weight in a component, and the weight or its mean."""
    from braidrl.orchestrator.train.rescore import weights_of

    values = weights_of(trace, component)
    values = values[values > 0]
    if not len(values):
        return "-"
    return f"{len(values)} x " + ("" if (values == values[0]).all() else "~") + f"{values.mean():.3g}"


def print_summary(replays: "list[Replay]") -> None:
    """Print summary statistics of each algorithm, and the agreement of the signals of two."""
    import numpy as np

    rows = [each.summary() for each in replays]
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    if len(replays) < 2:
        return
    first, second = (each.token_signal() for each in replays)
    if len(first) > 1 and first.std() > 0 and second.std() > 0:
        same = np.mean(np.sign(first) == np.sign(second))
        correlation = np.corrcoef(first, second)[0, 1]
        agreement = f"correlation {correlation:.4f}, same sign on {same:.1%}"
    else:
        agreement = "correlation undefined, because one of them is constant"
    print(f"\nrl signal (advantage times weight) of {len(first)} sampled tokens: {agreement}")
