"""Configuration blocks of users: each validates and has the expected effect."""

import logging
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from verifiers.v1.utils.loaders import load_environment

from braidrl.cli import main
from braidrl.configs.core.load import to_toml
from braidrl.configs.environment import resolve_env
from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.configs.resolve import resolve_environments
from braidrl.configs.rl import RLConfig
from braidrl.orchestrator.train.curriculum import AdvRangeGate, Curriculum, DifficultyPoolSampler
from tests.support.config_blocks import BLOCKS, OLDER_BLOCKS, block_named
from tests.support.groups import group_of

NOT_SHIPPED = {"math": "arithmetic"}
"""Environments of the blocks that are not bundled with Braid, and their substitutes."""


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_validates_and_reloads(name: str) -> None:
    config = block_named(name)
    assert RLConfig.model_validate(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_fits_the_environments_that_it_names(name: str) -> None:
    config = block_named(name).orchestrator
    for source in config.train.source:
        named = source.env["taskset"]["id"]
        source.env["taskset"]["id"] = NOT_SHIPPED.get(named, named)
    resolve_environments(config)
    assert all(source.env["taskset"]["id"] for source in config.train.source)


def test_losses_of_the_blocks() -> None:
    band, centered, own = (block_named(name) for name in ("icepop", "score_centering", "custom_loss"))
    loss = band.trainer.loss
    assert (loss.type, loss.ratio_low, loss.ratio_high, loss.adv_tau) == ("icepop", 0.2, 5.0, 1.0)
    loss = centered.trainer.loss
    assert (loss.type, loss.score_centering, loss.head_size) == ("icepop", True, 128)
    assert centered.orchestrator.train.capture_head == 128
    assert own.trainer.loss.model_dump() == {
        "type": "custom",
        "import_path": "my_module.ppo_clip_loss",
        "kwargs": {"clip_eps": 0.2},
    }


def algorithm_of(name: str) -> Any:
    return block_named(name).orchestrator.train.source[-1].algo


def test_algorithms_of_the_blocks() -> None:
    for name in ("opd", "grpo", "hierarchical_grpo", "rae", "opsd"):
        assert algorithm_of(name).type == name
    assert algorithm_of("opd").teacher.base_url == ["http://localhost:8001/v1"]
    assert algorithm_of("hierarchical_grpo").episode_agents == ["solver"]
    (source,) = block_named("hierarchical_grpo").orchestrator.train.source
    assert (source.group_size, source.env["n"]) == (4, 4)
    assert (algorithm_of("rae").decay, algorithm_of("opsd").demo_key) == (0.95, "demonstration")


def test_settings_of_grpo_and_echo_in_the_blocks() -> None:
    for name in ("length_penalty", "subagent_length_penalty", "prompt_aggregation"):
        assert algorithm_of(name).type == "grpo"
    assert algorithm_of("length_penalty").length_penalty.type == "linear"
    penalty = algorithm_of("subagent_length_penalty").length_penalty
    assert (penalty.type, penalty.subagent_token_weight, penalty.num_turns_weight) == (
        "linear-subagent",
        0,
        0,
    )
    assert algorithm_of("prompt_aggregation").loss_aggregation == "prompt"
    for name in ("echo_roles", "echo_filter"):
        assert algorithm_of(name).type == "echo"
        assert algorithm_of(name).roles.alphas == {"tool": 0.25, "user": 0.05}
    assert algorithm_of("echo_filter").filter.model_dump() == {
        "import_path": "my_module.drop_warnings",
        "kwargs": {"patterns": ["WARNING"]},
    }


def test_a_source_inherits_the_algorithm_or_has_its_own() -> None:
    math, terminal = block_named("one_algorithm_per_source").orchestrator.train.source
    assert (math.algo.type, math.env["agent"]["harness"]["id"]) == ("grpo", "null")
    assert (terminal.algo.type, terminal.env["agent"]["harness"]["id"]) == ("echo", "bash")


def test_the_renderer_block() -> None:
    assert block_named("renderer").orchestrator.renderer.name == "auto"


def test_the_curriculum_block_is_a_sampler_and_a_gate() -> None:
    source = block_named("curriculum").orchestrator.train.source[0]
    pools = {name: (pool.threshold, pool.weight) for name, pool in source.curriculum.sampler.pools.items()}
    assert pools == {"hard": (0.25, 0.2), "normal": (0.75, 1.0), "easy": (1.0, 0.2)}
    gate = source.curriculum.gates["low_signal"]
    assert (gate.type, gate.reject_min, gate.reject_max) == ("advantage_range", -0.05, 0.05)

    curriculum = Curriculum(source.curriculum, load_environment(resolve_env(source.env)).taskset)
    assert isinstance(curriculum.sampler, DifficultyPoolSampler)
    assert {name: type(gate) for name, gate in curriculum.gates.items()} == {"low_signal": AdvRangeGate}
    task = curriculum.next_task()
    curriculum.observe(group_of(task, [0.25, 0.25]))
    assert curriculum.metrics()["pools/hard"] == 1


def orchestrator(text: str) -> OrchestratorConfig:
    return OrchestratorConfig.model_validate({"model": {"path": "m"}, **tomllib.loads(text)["orchestrator"]})


def test_the_older_spelling_loads_and_shows_the_new_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = orchestrator(OLDER_BLOCKS["several_algorithms"])
    assert [(source.name, source.algo.type) for source in config.train.source] == [
        ("math-env", "grpo"),
        ("search-env", "grpo"),
        ("terminal-env", "echo"),
    ]
    assert config.train.source[0].env == {"taskset": {"id": "math-env"}}
    shown = caplog.messages[0].split("\n\n", 1)[1]
    caplog.clear()
    assert orchestrator(shown) == config
    assert not caplog.messages

    config = orchestrator(OLDER_BLOCKS["several_teachers"])
    teachers = {source.name: source.algo.teacher.name for source in config.train.source}
    assert teachers == {"code-env": "CodingExpertModel", "math-env": "MathExpertModel"}


@pytest.mark.parametrize("name", OLDER_BLOCKS)
def test_the_warning_is_what_to_write(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The config printed for the older spelling gives the same run without a warning."""
    shipped = {"math": "arithmetic", "search": "guess-number", "terminal": "terminal", "code": "reverse-text"}
    text = re.sub(r"(\w+)-env", lambda found: shipped[found[1]], OLDER_BLOCKS[name])
    before = dry_run(tmp_path / "old.toml", text, capsys)
    (warning,) = caplog.messages
    shown = warning.split("\n\n", 1)[1]
    assert "[[orchestrator.train.env]]" in warning
    assert '[[orchestrator.train.source]]\nname = "arithmetic"' in shown
    caplog.clear()
    assert dry_run(tmp_path / "new.toml", shown, capsys) == before
    assert not caplog.messages


def dry_run(file: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the resolved sources of a run."""
    file.write_text(f'model.path = "m"\n{text}')
    assert main(["rl", "@", str(file), "--dry-run"]) == 0
    return tomllib.loads(capsys.readouterr().out)["orchestrator"]["train"]


def test_both_spellings_at_once_are_refused() -> None:
    algo = {"type": "grpo"}
    with pytest.raises(ValueError, match=r"keep train\.algo"):
        OrchestratorConfig.model_validate({"model": {"path": "m"}, "algo": algo, "train": {"algo": algo}})
