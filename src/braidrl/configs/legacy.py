"""Earlier spellings of keys: translated, with a warning that shows what to write now."""

import logging
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
    train, new = dict(train), {}
    old = []
    if "algo" in orchestrator:
        if "algo" in train:
            raise ValueError("algo stands here and under train; keep train.algo, the current spelling")
        train["algo"] = new["algo"] = orchestrator["algo"]
        old.append("[orchestrator.algo]")
    if isinstance(train.get("env"), list):
        sources = [_source(env) for env in train.pop("env")]
        train["source"] = [*sources, *train.get("source", [])]
        new["source"] = sources
        old.append("[[orchestrator.train.env]]")
    if old:
        shown = tomli_w.dumps({"orchestrator": {"train": new}})
        logger.warning("%s: an older spelling; write this instead:\n\n%s", " and ".join(old), shown)
    return {**rest, "train": train}


def _source(env: Any) -> Any:
    """`id = "x"` names the taskset, and the source after it."""
    if not isinstance(env, dict) or "id" not in env:
        return env
    rest = {key: value for key, value in env.items() if key not in ("id", "name")}
    return {"name": env.get("name", env["id"]), **rest, "env": {"taskset": {"id": env["id"]}}}
