"""Accounting of a run: every dispatched group has exactly one outcome, or is listed in the checkpoint as remaining
work."""

from collections import Counter
from typing import Any

import msgspec

from braidrl.monitors.metrics import read_metrics
from braidrl.utils.run_folder import RunFolder


def ledger(run: RunFolder) -> list[dict[str, Any]]:
    """Return the outcome of each group, in the order in which they ended."""
    return list(read_metrics(run.metrics("groups")))


def check_accounts(run: RunFolder) -> Counter[str]:
    """Compare the recorded outcomes with the last checkpoint. Return the number of groups per outcome."""
    path = run.orchestrator_checkpoint(max(run.published("checkpoints")))
    state = msgspec.json.decode(path.read_bytes())["dispatcher"]
    lines, work = ledger(run), state["work"]
    dispatched = [line for line in (*lines, *work) if line["index"] is not None]
    episodes = Counter((line["index"], number) for line in dispatched for number in line["numbers"])
    assert set(episodes.values()) == {1}, "an episode is accounted for twice"
    assert {index for index, _ in episodes} == set(range(state["next_index"])), "a dispatch is lost"
    redispatched = Counter(_name(line, line["returns"]) for line in (*lines, *work) if line["returns"])
    returned = Counter(_name(line, line["returns"] + 1) for line in lines if line["fate"] == "stale")
    assert redispatched == returned, "returned stale work does not match the work that was dispatched again"
    return Counter(line["fate"] for line in lines)


def _name(line: dict[str, Any], returns: int) -> tuple[Any, ...]:
    return line["env"], line["task"], tuple(line["numbers"]), returns
