"""Static data of the page: the run's config, the algorithms of its sources, and its tokenizer."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from braidrl import __version__
from braidrl.report.page.pieces import Vocabulary
from braidrl.report.page.reasons import REASONS
from braidrl.utils.run_folder import RunFolder


def facts(run: RunFolder) -> dict[str, Any]:
    """Return the static data of a run, for display and for the page's scripts."""
    config = resolved(run)
    files = [*sorted(run.configs.glob("*.toml")), run.record, run.packages]
    return {
        "name": run.root.absolute().name,
        "folder": str(run.root.absolute()),
        "braidrl": __version__,
        "algorithms": algorithms(config),
        "loss": {"type": "ipo"} | _dict(config, "trainer", "loss"),
        "max_steps": config.get("max_steps"),
        "config": {path.name: path.read_text(encoding="utf-8") for path in files if path.is_file()},
        "reasons": REASONS,
    }


def resolved(run: RunFolder) -> dict[str, Any]:
    """Return the resolved config of the run, or of a single process that ran alone. Empty if there is none."""
    for name in ("rl", "sft", "eval", "trainer", "orchestrator"):
        if (path := run.configs / f"{name}.toml").is_file():
            return tomllib.loads(path.read_text(encoding="utf-8"))
    return {}


def algorithms(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the algorithm of each training source by source name."""
    train = _dict(config, "orchestrator", "train")
    return {source["name"]: source["algo"]["type"] for source in train.get("source", ()) if "algo" in source}


def find_tokenizer(run: RunFolder, named: Path | None = None) -> Vocabulary | None:
    """Return the vocabulary of the run's tokenizer, or None if no `tokenizer.json` is found.

    Searched in this order: `named` (a `tokenizer.json` or a folder with one), the newest remaining weights, the base
    model, its copy in the Hugging Face cache. Raises `FileNotFoundError` if `named` does not have one, and `ValueError`
    if it cannot be read.
    """
    if named is not None:
        path = named / "tokenizer.json" if named.is_dir() else named
        return Vocabulary.load(path)
    model = _dict(resolved(run), "model").get("path", "")
    weights = [run.weights(version) for version in reversed(run.published("weights"))]
    for folder in [*weights, Path(model)]:
        if (path := folder / "tokenizer.json").is_file():
            return Vocabulary.load(path)
    return _cached(model)


def _cached(model: str) -> Vocabulary | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(model, "tokenizer.json")
    except HFValidationError:  # not a repository id but the path of a folder that no longer exists
        return None
    return Vocabulary.load(Path(path)) if isinstance(path, str) else None


def _dict(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    found: Any = config
    for key in keys:
        found = found.get(key) or {}
    return dict(found)
