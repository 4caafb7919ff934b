"""Earlier spellings of keys: translated, with a warning that shows what to write now."""

import logging
from collections.abc import Iterator
from typing import Any

import tomli_w

logger = logging.getLogger(__name__)


def translate(orchestrator: dict[str, Any]) -> dict[str, Any]:
    """An `[orchestrator]` block with `[orchestrator.algo]` and `[[orchestrator.train.env]] id = ...` spelled as
    `[orchestrator.train.algo]` and `[[orchestrator.train.source]] env.taskset.id = ...`."""
    train = orchestrator.get("train", {})
    if not isinstance(train, dict) or not ("algo" in orchestrator or "env" in train):
        return orchestrator
    rest = {key: value for key, value in orchestrator.items() if key != "algo"}
    train = dict(train)
    old, new = [], []
    if "algo" in orchestrator:
        if "algo" in train:
            raise ValueError("algo stands here and under train; keep train.algo, the current spelling")
        train["algo"] = orchestrator["algo"]
        old.append("[orchestrator.algo]")
        new.append(_block("[orchestrator.train.algo]", train["algo"]))
    if isinstance(train.get("env"), list):
        sources = [_source(env) for env in train.pop("env")]
        train["source"] = [*sources, *train.get("source", [])]
        old.append("[[orchestrator.train.env]]")
        new += [_block("[[orchestrator.train.source]]", source) for source in sources]
    if old:
        blocks = "\n\n".join(new)
        logger.warning("%s: an older spelling; write this instead:\n\n%s\n", " and ".join(old), blocks)
    return {**rest, "train": train}


def _source(env: Any) -> Any:
    """`id = "x"` names the taskset, and the source after it."""
    if not isinstance(env, dict) or "id" not in env:
        return env
    rest = {key: value for key, value in env.items() if key not in ("id", "name")}
    return {"name": env.get("name", env["id"]), **rest, "env": {"taskset": {"id": env["id"]}}}


def _block(header: str, block: Any) -> str:
    """A block of a TOML file, its nested keys dotted."""
    return "\n".join([header, *(_lines(block) if isinstance(block, dict) else [])])


def _lines(block: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in block.items():
        if isinstance(value, dict):
            yield from _lines(value, f"{prefix}{key}.")
        else:
            yield prefix + tomli_w.dumps({key: value}).strip()
