"""`braid score EPISODES --algo.type TYPE [--against.type TYPE]`: what an algorithm makes of recorded episodes."""

from typing import TYPE_CHECKING

from braidrl.configs.errors import ConfigError
from braidrl.configs.load import load_config
from braidrl.configs.score import ScoreConfig
from braidrl.report.table import print_table

if TYPE_CHECKING:
    from braidrl.orchestrator.train.replay import RecordedGroup, Replay


def main(args: list[str]) -> int:
    if args and not args[0].startswith(("-", "@")):
        args = ["--episodes", *args]
    config = load_config(ScoreConfig, args, "braid score")
    if config.output is not None and config.output.exists():
        raise ConfigError("output", f"{config.output} exists; name a new file")
    replays = score(config)
    print_groups(replays)
    print()
    print_summary(replays)
    if config.output is not None:
        from braidrl.orchestrator.records import append_records
        from braidrl.orchestrator.train.replay import signal_records

        append_records(config.output, signal_records(replays))
        print(f"\nsignals of every token: {config.output}")
    return 0


def score(config: ScoreConfig) -> "list[Replay]":
    """Run the algorithms of `config`, the main one first. Raises `ConfigError` where there is nothing to run on."""
    import asyncio

    from braidrl.orchestrator.train.replay import read_groups, replay

    try:
        groups = [group for group in read_groups(config.episodes) if config.source in (None, group.source)]
    except (OSError, ValueError) as error:
        raise ConfigError("episodes", str(error)) from None
    if not groups:
        raise ConfigError("source", f"no episode of {config.episodes} is of source {config.source!r}")
    replays = []
    for path, algo in (("algo", config.algo), ("against", config.against)):
        if algo is None:
            continue
        try:
            algo.check_agents(sorted({trace.agent.name for group in groups for trace in group.traces}))
        except ValueError as error:
            raise ConfigError(path, str(error)) from None
        replays.append(asyncio.run(replay(path, algo, groups)))
    return replays


def print_groups(replays: "list[Replay]") -> None:
    """One line a group: the reward of each trace, and its advantage (the mean over its tokens) by each algorithm."""
    rows = []
    for groups in zip(*(each.groups for each in replays), strict=True):
        rewards = " ".join(f"{trace.reward:g}" for trace in groups[0].traces)
        rows.append(
            (groups[0].source, groups[0].id, rewards, *(" ".join(advantages(group)) for group in groups))
        )
    print_table(("source", "group", "rewards", *(each.title for each in replays)), rows)


def advantages(group: "RecordedGroup") -> list[str]:
    """The advantage of each trace of a group; `-` where it has none."""
    from braidrl.orchestrator.train.replay import advantages_of

    values = [advantages_of(trace) for trace in group.traces]
    return [f"{value.mean():+.4g}" if value is not None else "-" for value in values]


def print_summary(replays: "list[Replay]") -> None:
    """Each algorithm's share of groups without signal and size of advantage, and how far two agree."""
    import numpy as np

    rows = [each.summary() for each in replays]
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    if len(replays) == 2:
        first, second = (each.token_advantages() for each in replays)
        varied = len(first) > 1 and first.std() > 0 and second.std() > 0
        agreement = (
            f"{np.corrcoef(first, second)[0, 1]:.4f}" if varied else "undefined: one of them never varies"
        )
        print(f"\ncorrelation of the advantages over {len(first)} sampled tokens: {agreement}")
