"""`braid score EPISODES --algo.type TYPE [--against.type TYPE]`: what an algorithm makes of recorded episodes."""

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
A column is a trace: its reward, then the advantage of its sampled tokens (~: the mean, where they differ), and under it
what an algorithm weighs in a loss component itself (n x w: n tokens of weight w)."""


def main(args: list[str]) -> int:
    if args and not args[0].startswith(("-", "@")):
        args = ["--episodes", *args]
    config = load_config(ScoreConfig, args, "braid score")
    if config.output is not None and config.output.exists():
        raise ConfigError("output", f"{config.output} exists; name a new file")
    replays = score(config)
    print_groups(replays, config.show)
    print_summary(replays)
    if config.output is not None:
        from braidrl.orchestrator.pipeline.records import append_records
        from braidrl.orchestrator.train.rescore import signal_records

        append_records(config.output, signal_records(replays))
        print(f"\nsignals of every token: {config.output}")
    return 0


def score(config: ScoreConfig) -> "list[Replay]":
    """Run the algorithms of `config`, the main one first. Raises `ConfigError` where there is nothing to run on."""
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
            "source", f"no episode of {config.episodes} is of source {config.source!r}, only {sources}"
        )
    replays: list[Replay] = []
    asyncio.run(_replay(config, groups, replays))
    return replays


async def _replay(config: ScoreConfig, groups: "list[RecordedGroup]", replays: "list[Replay]") -> None:
    """Fill `replays`. (A task that returned them would have them written out: asyncio takes its repr at the end.)"""
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
    """A block of aligned lines for each of `show` groups, a column a trace."""
    total = len(replays[0].groups)
    count = min(show, total)
    if not count:
        return
    print(LEGEND)
    if count < total:
        print(f"{count} of {total} groups, evenly spread; --show {total} prints all.")
    for index in (number * (total - 1) // max(count - 1, 1) for number in range(count)):
        group = replays[0].groups[index]
        named = group.id.startswith(group.source)
        print(f"\n{group.id if named else f'{group.source} {group.id}'}")
        rows = list(group_rows([(each.title, each.groups[index]) for each in replays]))
        for line in columns(rows, shutil.get_terminal_size((110, 24)).columns):
            print(line)
    print()


def group_rows(scored: "Sequence[tuple[str, RecordedGroup]]") -> Iterator[tuple[str, list[str]]]:
    """(name, one cell a trace) of each line of a group, which comes as each algorithm scored it, under its title."""
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
    """The advantage of a trace's sampled tokens, their mean where they differ; `-` where it has none."""
    from braidrl.orchestrator.train.rescore import advantages_of

    values = advantages_of(trace)
    if values is None:
        return "-"
    if not values.any():
        return "0"
    return ("" if (values == values[0]).all() else "~") + f"{values.mean():+.3g}"


def weights(trace: "Trace", component: str) -> str:
    """How many tokens of a trace weigh something in a component, and how much (their mean where they differ)."""
    from braidrl.orchestrator.train.rescore import weights_of

    values = weights_of(trace, component)
    values = values[values > 0]
    if not len(values):
        return "-"
    return f"{len(values)} x " + ("" if (values == values[0]).all() else "~") + f"{values.mean():.3g}"


def print_summary(replays: "list[Replay]") -> None:
    """Each algorithm's share of groups without signal and size of advantage, and how far two agree."""
    import numpy as np

    rows = [each.summary() for each in replays]
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    if len(replays) < 2:
        return
    first, second = (each.token_signal() for each in replays)
    if len(first) > 1 and first.std() > 0 and second.std() > 0:
        same = np.mean(np.sign(first) == np.sign(second))
        correlation = np.corrcoef(first, second)[0, 1]
        agreement = f"correlation {correlation:.4f}, the same sign on {same:.1%}"
    else:
        agreement = "no correlation, for one of them never varies"
    print(f"\nrl signal (advantage times weight) of {len(first)} sampled tokens: {agreement}")
