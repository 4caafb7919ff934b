"""Translation of earlier spellings of keys, with a warning that shows the current spelling."""

import logging
from collections.abc import Iterator
from typing import Any

import tomli_w

logger = logging.getLogger(__name__)


def translate(orchestrator: dict[str, Any]) -> dict[str, Any]:
    """Return an `[orchestrator]` block in the current spelling, and log a warning if that changed it.

    `[orchestrator.algo]` becomes `[orchestrator.train.algo]`, and `[[orchestrator.train.env]] id = ...` becomes
    `[[orchestrator.train.source]] env.taskset.id = ...`.
    """
    train = orchestrator.get("train", {})
    if not isinstance(train, dict) or not ("algo" in orchestrator or "env" in train):
        return orchestrator
    rest = {key: value for key, value in orchestrator.items() if key != "algo"}
    train = dict(train)
    old, new = [], []
    if "algo" in orchestrator:
        if "algo" in train:
            raise ValueError(
                "both algo and train.algo are set; remove algo, which is an older spelling, and keep train.algo"
            )
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
        logger.warning("%s: older spelling; replace it by:\n\n%s\n", " and ".join(old), blocks)
    return {**rest, "train": train}


def _source(env: Any) -> Any:
    """Return a source in the current spelling. `id` is the taskset, and the default name of the source."""
    if not isinstance(env, dict) or "id" not in env:
        return env
    rest = {key: value for key, value in env.items() if key not in ("id", "name")}
    return {"name": env.get("name", env["id"]), **rest, "env": {"taskset": {"id": env["id"]}}}


def _block(header: str, block: Any) -> str:
    """Return a block as TOML with dotted keys for nested blocks."""
    return "\n".join([header, *(_lines(block) if isinstance(block, dict) else [])])


def _lines(block: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in block.items():
        if isinstance(value, dict):
            yield from _lines(value, f"{prefix}{key}.")
        else:
            yield prefix + tomli_w.dumps({key: value}).strip()
