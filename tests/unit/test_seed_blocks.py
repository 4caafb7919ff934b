"""The configuration blocks of the documents that Braid comes from: each validates, or says which part is missing."""

import copy
import logging
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from braidrl.configs.load import to_toml
from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.configs.resolve import resolve_environments
from braidrl.configs.rl import RLConfig

ELSEWHERE = ("[trainer.loss]", "curriculum.sampler")
"""Blocks about losses and curricula, which have tests of their own."""


def merge(base: dict[str, Any], block: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(base)
    for key, value in block.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if nested else value
    return merged


def algorithm_blocks(shared_dir: Path) -> list[dict[str, Any]]:
    """Every algorithm's TOML block; one that continues an algorithm's description stands on the block before."""
    text = next((shared_dir / "seeds").glob("000_*")).read_text()
    blocks: list[dict[str, Any]] = []
    for source in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        if any(word in source for word in ELSEWHERE):
            continue
        block = tomllib.loads(source)
        if "algo.filter" in source:
            block = merge(blocks[-1], block)
        blocks.append(block)
    return blocks


def run_config(block: dict[str, Any]) -> RLConfig:
    minimal = {
        "model": {"path": "m"},
        "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "reverse-text"}}}]}},
        "trainer": {},
        "inference": {},
    }
    return RLConfig.model_validate(merge(minimal, block))


def test_every_algorithm_block_validates_and_reloads(shared_dir: Path) -> None:
    blocks = algorithm_blocks(shared_dir)
    configs = [run_config(block) for block in blocks]
    types = [config.orchestrator.train.source[-1].algo.type for config in configs]
    assert types == [
        "opd",
        "grpo",
        "echo",
        "echo",
        "echo",
        "grpo",
        "grpo",
        "grpo",
        "hierarchical_grpo",
        "rae",
        "opsd",
        "grpo",
    ]
    for config in configs:
        assert RLConfig.model_validate(tomllib.loads(to_toml(config))) == config


def test_the_blocks_fit_the_environments_that_they_name(shared_dir: Path) -> None:
    """`math` alone does not ship with Braid."""
    for block in algorithm_blocks(shared_dir):
        config = run_config(block).orchestrator
        for source in config.train.source:
            if source.env["taskset"]["id"] == "math":
                source.env["taskset"]["id"] = "reverse-text"
        resolve_environments(config)
        assert all(source.env["taskset"]["id"] for source in config.train.source)


def test_what_the_blocks_say_is_what_runs(shared_dir: Path) -> None:
    configs = [run_config(block).orchestrator for block in algorithm_blocks(shared_dir)]
    algos = [config.train.source[-1].algo for config in configs]
    assert algos[0].teacher.base_url == ["http://localhost:8001/v1"]
    assert algos[2].roles.alphas == {"tool": 0.25, "user": 0.05}
    assert algos[3].filter.model_dump() == {
        "import_path": "my_module.drop_warnings",
        "kwargs": {"patterns": ["WARNING"]},
    }
    assert [source.algo.type for source in configs[4].train.source] == ["grpo", "echo"]
    assert algos[5].length_penalty.type == "linear"
    penalty = algos[6].length_penalty
    assert (penalty.subagent_token_weight, penalty.num_turns_weight) == (0.0, 0.0)
    assert algos[7].loss_aggregation == "prompt"
    assert algos[8].episode_agents == ["solver"]


def older_blocks(shared_dir: Path) -> list[str]:
    """The announcement's two configurations, which stand in its text without fences."""
    text = next((shared_dir / "seeds").glob("001_*")).read_text()
    mixed = text[text.index("[orchestrator.algo]") : text.index("Or multi-teacher OPD")]
    rest = text[text.index("Or multi-teacher OPD") :]
    several = rest[rest.index("[[orchestrator") : rest.index("prime-rl only ever")]
    return [mixed, several]


def test_the_older_spelling_loads_and_shows_the_new_one(
    shared_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mixed, several = older_blocks(shared_dir)
    with caplog.at_level(logging.WARNING):
        config = OrchestratorConfig.model_validate(
            {"model": {"path": "m"}, **tomllib.loads(mixed)["orchestrator"]}
        )
    assert [(source.name, source.algo.type) for source in config.train.source] == [
        ("math-env", "grpo"),
        ("search-env", "grpo"),
        ("terminal-env", "echo"),
    ]
    assert config.train.source[0].env == {"taskset": {"id": "math-env"}}
    shown = tomllib.loads(caplog.messages[0].split("\n\n", 1)[1])["orchestrator"]
    caplog.clear()
    assert OrchestratorConfig.model_validate({"model": {"path": "m"}, **shown}) == config
    assert not caplog.messages

    config = OrchestratorConfig.model_validate(
        {"model": {"path": "m"}, **tomllib.loads(several)["orchestrator"]}
    )
    teachers = {source.name: source.algo.teacher.name for source in config.train.source}
    assert teachers == {"code-env": "CodingExpertModel", "math-env": "MathExpertModel"}


def test_both_spellings_at_once_are_refused() -> None:
    algo = {"type": "grpo"}
    with pytest.raises(ValueError, match=r"keep train\.algo"):
        OrchestratorConfig.model_validate({"model": {"path": "m"}, "algo": algo, "train": {"algo": algo}})
