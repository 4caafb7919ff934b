"""Data of one episode for the page: its traces, their branches, and the recorded values of every token."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from braidrl.report.page.index import Index
from braidrl.report.page.reasons import BranchContext, reasons
from braidrl.report.page.records import line_at

NODE_STREAMS = ("token_ids", "logprobs", "advantages", "reference_logprobs", "loss_weights")
"""Fields of a node that are copied unchanged."""


def rollout(index: Index, episode: str, seq_len: int | None = None) -> dict[str, Any]:
    """Return the data of an episode by id (its first `ID` hex digits). Raises `KeyError` if it was not recorded."""
    place = index.places[episode]
    record = msgspec.json.decode(line_at(place.path, place.offset))
    samples = [msgspec.json.decode(line_at(*each)) for each in index.sampled.get(episode, ())]
    known = record["braid"]
    kind = place.path.parent.name
    fate = index.fate.get(known["key"])
    return {
        "id": episode,
        "record": record["id"],
        "file": f"{kind}/{place.path.name}",
        "kind": kind,
        "fate": fate,
        "task": (record.get("task") or {}).get("data"),
        "errors": record.get("errors") or [],
        **{name: known.get(name) for name in ("env", "step", "key", "group", "outcome", "seconds")},
        "traces": [_trace(trace, record, kind, fate, samples, seq_len) for trace in record["traces"]],
    }


def token_ids(rollouts: Iterable[Mapping[str, Any]]) -> set[int]:
    """Return all token ids in the rollouts."""
    return {
        number
        for each in rollouts
        for trace in each["traces"]
        for node in trace["nodes"]
        for number in node["token_ids"]
    }


def branches(trace: Mapping[str, Any]) -> list[tuple[list[int], bool]]:
    """Return the node numbers of each path from root to leaf, and True if the branch is trained.

    The order is that of `verifiers.v1.Trace.branches`. A compaction attempt is trained only if the agent continued
    from it.
    """
    nodes = trace["nodes"]
    parents = [node.get("parent") for node in nodes]
    links = [link for node in nodes for link in node.get("semantic_parents") or ()]
    accepted = {link["node"] for link in links if link["type"] == "compaction"}
    found = []
    for leaf in range(len(nodes)):
        if leaf in parents:
            continue
        path = [leaf]
        while (parent := parents[path[-1]]) is not None:
            path.append(parent)
        kinds = {link["type"] for link in nodes[leaf].get("semantic_parents") or ()}
        found.append((path[::-1], "compaction_attempt" not in kinds or leaf in accepted))
    return found


def _trace(
    trace: Mapping[str, Any],
    record: Mapping[str, Any],
    kind: str,
    fate: str | None,
    samples: Sequence[Mapping[str, Any]],
    seq_len: int | None,
) -> dict[str, Any]:
    known = record["braid"]
    reward = known["rewards"].get(trace["id"])
    trainable = trace["agent"].get("trainable", True)
    circumstances = BranchContext(
        kind=kind,
        outcome=known["outcome"],
        fate=fate,
        trainable=trainable,
        error=bool(trace.get("errors")) or bool(record.get("errors") and not record.get("ok", True)),
        reward=reward is not None and math.isfinite(reward),
    )
    own = {sample["branch"]: sample for sample in samples if sample["trace"] == trace["id"]}
    versions = node_versions(trace, known["versions"].get(trace["id"], []))
    return {
        "id": trace["id"],
        "agent": trace["agent"].get("name", ""),
        "trainable": trainable,
        "reward": reward,
        "rewards": trace.get("rewards") or {},
        "metrics": trace.get("metrics") or {},
        "stop": trace.get("stop_condition"),
        "errors": trace.get("errors") or [],
        "nodes": [_node(node, own) for node, own in zip(trace["nodes"], versions)],
        "branches": _branches(trace, circumstances, own, seq_len),
    }


def _branches(
    trace: Mapping[str, Any],
    circumstances: BranchContext,
    samples: Mapping[int, Mapping[str, Any]],
    seq_len: int | None,
) -> list[dict[str, Any]]:
    """Return every branch with the reasons of its tokens and its sample. `circumstances` apply to the whole trace."""
    seen: set[int] = set()
    shown = []
    for number, (path, trains) in enumerate(branches(trace)):
        nodes = [trace["nodes"][each] for each in path]
        length = sum(len(node["token_ids"]) for node in nodes)
        here = replace(
            circumstances,
            compacted=not trains,
            too_long=seq_len is not None and length > seq_len,
            sample=samples.get(number),
        )
        why = reasons(nodes, [each in seen for each in path], here)
        shown.append({"nodes": path, "why": why, "sample": here.sample})
        seen.update(path)
    return shown


def _node(node: Mapping[str, Any], versions: list[int] | None) -> dict[str, Any]:
    message = node["message"]
    kept = {name: node[name] for name in NODE_STREAMS if node.get(name)}
    return {
        "role": message.get("role", ""),
        "sampled": node.get("sampled", False),
        "text": None if node["token_ids"] else text_of(message.get("content")),
        "mask": bits(node["mask"]),
        "content": bits(node.get("is_content") or ()),
        "versions": versions,
        "token_ids": [],
    } | kept


def node_versions(
    trace: Mapping[str, Any], calls: Sequence[Sequence[Sequence[int]]]
) -> list[list[int] | None]:
    """Return the policy versions of the sampled tokens of each node, None if unknown.

    Records do not link calls to messages, so each message takes the first remaining call with as many tokens.
    """
    left = [[version for version, count in spans for _ in range(count)] for spans in calls]
    found: list[list[int] | None] = []
    for node in trace["nodes"]:
        count = sum(node["mask"])
        call = next((number for number, each in enumerate(left) if count and len(each) == count), None)
        found.append(None if call is None else left.pop(call))
    return found


def bits(flags: Iterable[bool]) -> str:
    """Encode flags as a string: `[True, False]` is `10`."""
    return "".join("1" if flag else "0" for flag in flags)


def text_of(content: Any) -> str:
    """Return the text of a message. Parts without text are shown as `[type]`."""
    if isinstance(content, list):
        return "\n".join(part.get("text") or f"[{part.get('type')}]" for part in content)
    return content or ""
