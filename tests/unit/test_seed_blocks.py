"""The configuration blocks of the documents that Braid comes from: each validates and says what runs."""

import copy
import logging
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from verifiers.v1.utils.loaders import load_environment

from braidrl.cli import main
from braidrl.configs.environment import resolve_env
from braidrl.configs.load import to_toml
from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.configs.resolve import resolve_environments
from braidrl.configs.rl import RLConfig
from braidrl.orchestrator.train.curriculum import AdvRangeGate, Curriculum, DifficultyPoolSampler
from tests.unit.groups import group_of

CONTINUED = "[orchestrator.train.algo.filter]"
"""Begins the block that goes on where the one before it ends."""
NOT_SHIPPED = {"math": "arithmetic"}
"""Environments of the document that do not come with Braid, and who plays them here."""


def merge(base: dict[str, Any], block: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(base)
    for key, value in block.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if nested else value
    return merged


def all_blocks(shared_dir: Path) -> list[str]:
    """Every fenced TOML block of the document, in order."""
    text = next((shared_dir / "seeds").glob("000_*")).read_text()
    return re.findall(r"```toml\n(.*?)```", text, re.DOTALL)


def blocks_of(shared_dir: Path) -> list[dict[str, Any]]:
    """All of them, each a run: the one that continues an algorithm stands on the block before, and one that continues a
    source has that source first."""
    blocks: list[dict[str, Any]] = []
    for source in all_blocks(shared_dir):
        block = tomllib.loads(source)
        train = block.get("orchestrator", {}).get("train", {})
        if isinstance(train.get("source"), dict):
            train["source"] = [{"env": {"taskset": {"id": "reverse-text"}}, **train["source"]}]
        blocks.append(merge(blocks[-1], block) if source.startswith(CONTINUED) else block)
    return blocks


def run_config(block: dict[str, Any]) -> RLConfig:
    minimal = {
        "model": {"path": "m"},
        "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "reverse-text"}}}]}},
        "trainer": {},
        "inference": {},
    }
    return RLConfig.model_validate(merge(minimal, block))


def test_every_block_validates_and_reloads(shared_dir: Path) -> None:
    assert len(blocks_of(shared_dir)) == 16
    for block in blocks_of(shared_dir):
        config = run_config(block)
        assert RLConfig.model_validate(tomllib.loads(to_toml(config))) == config


def test_the_blocks_fit_the_environments_that_they_name(shared_dir: Path) -> None:
    for block in blocks_of(shared_dir):
        config = run_config(block).orchestrator
        for source in config.train.source:
            named = source.env["taskset"]["id"]
            source.env["taskset"]["id"] = NOT_SHIPPED.get(named, named)
        resolve_environments(config)
        assert all(source.env["taskset"]["id"] for source in config.train.source)


def test_what_the_blocks_say_is_what_runs(shared_dir: Path) -> None:
    runs = [run_config(block) for block in blocks_of(shared_dir)]
    check_losses(runs[5:8])
    check_algorithms([run.orchestrator for run in runs[:5] + runs[8:]])


def check_losses(runs: list[RLConfig]) -> None:
    band, centered, own = (run.trainer.loss for run in runs)
    assert (band.type, band.ratio_low, band.ratio_high, band.adv_tau) == ("icepop", 0.2, 5.0, 1.0)
    assert (centered.type, centered.score_centering, centered.head_size) == ("icepop", True, 128)
    assert runs[1].orchestrator.train.capture_head == 128
    assert own.model_dump() == {
        "type": "custom",
        "import_path": "my_module.ppo_clip_loss",
        "kwargs": {"clip_eps": 0.2},
    }


def check_algorithms(configs: list[OrchestratorConfig]) -> None:
    algos = [config.train.source[-1].algo for config in configs]
    types = "opd grpo echo echo echo grpo grpo grpo hierarchical_grpo rae opsd grpo grpo"
    assert " ".join(algo.type for algo in algos) == types
    assert algos[0].teacher.base_url == ["http://localhost:8001/v1"]
    assert algos[2].roles.alphas == {"tool": 0.25, "user": 0.05}
    assert algos[3].filter.model_dump() == {
        "import_path": "my_module.drop_warnings",
        "kwargs": {"patterns": ["WARNING"]},
    }
    math, terminal = configs[4].train.source
    assert (math.algo.type, math.env["agent"]["harness"]["id"]) == ("grpo", "null")
    assert (terminal.algo.type, terminal.env["agent"]["harness"]["id"]) == ("echo", "bash")
    assert algos[5].length_penalty.type == "linear"
    penalty = algos[6].length_penalty
    assert (penalty.subagent_token_weight, penalty.num_turns_weight) == (0.0, 0.0)
    assert algos[7].loss_aggregation == "prompt"
    assert algos[8].episode_agents == ["solver"]
    assert (configs[8].train.source[0].group_size, configs[8].train.source[0].env["n"]) == (4, 4)
    assert (algos[9].decay, algos[10].demo_key) == (0.95, "demonstration")
    curriculum = configs[11].train.source[0].curriculum
    assert {name: (pool.threshold, pool.weight) for name, pool in curriculum.sampler.pools.items()} == {
        "hard": (0.25, 0.2),
        "normal": (0.75, 1.0),
        "easy": (1.0, 0.2),
    }
    gate = curriculum.gates["low_signal"]
    assert (gate.type, gate.reject_min, gate.reject_max) == ("advantage_range", -0.05, 0.05)
    assert configs[12].renderer.name == "auto"


def test_the_curriculum_of_the_document_is_one(shared_dir: Path) -> None:
    source = run_config(blocks_of(shared_dir)[14]).orchestrator.train.source[0]
    curriculum = Curriculum(source.curriculum, load_environment(resolve_env(source.env)).taskset)
    assert isinstance(curriculum.sampler, DifficultyPoolSampler)
    assert {name: type(gate) for name, gate in curriculum.gates.items()} == {"low_signal": AdvRangeGate}
    task = curriculum.next_task()
    curriculum.observe(group_of(task, [0.25, 0.25]))
    assert curriculum.metrics()["pools/hard"] == 1


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


def test_the_warning_is_what_to_write(
    shared_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks that a run in the older spelling prints make the same run, with nothing left to say."""
    shipped = {"math": "arithmetic", "search": "guess-number", "terminal": "terminal", "code": "reverse-text"}
    for announced in older_blocks(shared_dir):
        text = re.sub(r"(\w+)-env", lambda found: shipped[found[1]], announced)
        before = dry_run(tmp_path / "old.toml", text, capsys)
        (warning,) = caplog.messages
        shown = warning.split("\n\n", 1)[1]
        assert warning.startswith("[") and "older spelling; write this instead:" in warning
        assert '[[orchestrator.train.source]]\nname = "arithmetic"' in shown
        caplog.clear()
        assert dry_run(tmp_path / "new.toml", shown, capsys) == before
        assert not caplog.messages


def dry_run(file: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The resolved sources of a run."""
    file.write_text(f'[model]\npath = "m"\n\n{text}')
    assert main(["rl", "@", str(file), "--dry-run"]) == 0
    return tomllib.loads(capsys.readouterr().out)["orchestrator"]["train"]


def test_both_spellings_at_once_are_refused() -> None:
    algo = {"type": "grpo"}
    with pytest.raises(ValueError, match=r"keep train\.algo"):
        OrchestratorConfig.model_validate({"model": {"path": "m"}, "algo": algo, "train": {"algo": algo}})
