"""Algorithms in a run's config: inheritance of sources, invalid combinations, and their errors."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from braidrl.cli import main
from braidrl.configs.algorithm import EchoConfig, GRPOConfig, RAEConfig
from braidrl.configs.core.load import to_toml
from braidrl.configs.orchestrator import OrchestratorConfig, TrainConfig

MINIMAL = """\
[model]
path = "m"

[[orchestrator.train.source]]
name = "first"
env.taskset.id = "reverse-text"
"""
FROZEN = {"name": "t", "base_url": "http://t/v1"}


def train(group: dict[str, Any], *sources: dict[str, Any]) -> TrainConfig:
    return TrainConfig.model_validate(
        {"algo": group, "source": [{"env": {}, **({"algo": algo} if algo else {})} for algo in sources]}
    )


def orchestrator(*algos: dict[str, Any], **settings: Any) -> OrchestratorConfig:
    sources = [{"env": {}, "algo": algo} for algo in algos]
    return OrchestratorConfig.model_validate(
        {"model": {"path": "m"}, "train": {"source": sources, **settings}}
    )


def dry_run(tmp_path: Path, *flags: str, text: str = MINIMAL) -> int:
    (tmp_path / "rl.toml").write_text(text)
    return main(["rl", "@", str(tmp_path / "rl.toml"), *flags, "--dry-run"])


# -- inheritance


def test_the_default_is_grpo_and_every_source_has_one_of_its_own() -> None:
    config = train({}, {}, {})
    assert config.algo == config.source[0].algo == GRPOConfig()
    assert config.source[0].algo is not config.source[1].algo


def test_a_source_that_sets_some_keys_keeps_the_groups_algorithm() -> None:
    config = train({"type": "rae", "decay": 0.5}, {}, {"decay": 0.9}, {"type": "rae"})
    assert [source.algo for source in config.source] == [
        RAEConfig(decay=0.5),
        RAEConfig(decay=0.9),
        RAEConfig(decay=0.5),
    ]


def test_a_source_of_another_type_takes_nothing_over() -> None:
    config = train({"type": "grpo", "loss_aggregation": "prompt"}, {"type": "echo"})
    assert config.source[0].algo == EchoConfig()


def test_a_group_without_a_type_is_grpo_for_its_sources_too() -> None:
    group = {"length_weighted_baseline": True}
    config = train(group, {"type": "grpo"}, {"loss_aggregation": "prompt"})
    assert config.source[0].algo == GRPOConfig(length_weighted_baseline=True)
    assert config.source[1].algo == GRPOConfig(length_weighted_baseline=True, loss_aggregation="prompt")


def test_a_frozen_sampler_stays_with_the_algorithm_that_it_is_for() -> None:
    group = {"type": "sft", "sampling": {"source": FROZEN}}
    imitate, train_itself = (source.algo for source in train(group, {}, {"type": "grpo"}).source)
    assert imitate.sampling.source.name == "t"
    assert train_itself.sampling.source == "policy"


def test_blocks_within_the_algorithm_inherit_alike() -> None:
    group = {"type": "grpo", "length_penalty": {"num_turns_weight": 0.5}}
    same = {"length_penalty": {"num_input_tokens_weight": 0.0}}
    other = {"length_penalty": {"type": "linear-subagent"}}
    first, second, third = (
        source.algo for source in train(group, same, other, {"length_penalty": None}).source
    )
    assert (first.length_penalty.num_turns_weight, first.length_penalty.num_input_tokens_weight) == (0.5, 0.0)
    assert second.length_penalty.model_dump()["type"] == "linear-subagent"
    assert second.length_penalty.num_turns_weight == 0.1
    assert third.length_penalty is None


def test_setting_any_echo_role_replaces_the_whole_table() -> None:
    assert EchoConfig().roles.alphas == {"tool": 0.1}
    assert EchoConfig.model_validate({"roles": {"user": {"alpha": 0.05}}}).roles.alphas == {"user": 0.05}
    group = {"type": "echo", "roles": {"tool": {"alpha": 0.25}}}
    config = train(group, {"roles": {"user": {"alpha": 0.05}}}, {"length_weighted_baseline": True})
    assert config.source[0].algo.roles.alphas == {"user": 0.05}
    assert config.source[1].algo.roles.alphas == {"tool": 0.25}


def test_another_filter_does_not_get_the_groups_arguments() -> None:
    group = {"type": "echo", "filter": {"import_path": "m.a", "kwargs": {"patterns": ["W"]}}}
    config = train(group, {"filter": {"import_path": "m.b"}}, {"filter": {"kwargs": {"patterns": []}}})
    assert config.source[0].algo.filter.kwargs == {}
    assert config.source[1].algo.filter.model_dump() == {"import_path": "m.a", "kwargs": {"patterns": []}}


def test_what_is_written_down_loads_as_the_same_config() -> None:
    config = orchestrator(
        {},
        {"length_penalty": None},
        {"type": "echo", "roles": {"user": {"alpha": 1}}},
        {"type": "opd", "teacher": FROZEN},
        algo={"type": "grpo", "length_penalty": {}},
    )
    assert OrchestratorConfig.model_validate(tomllib.loads(to_toml(config))) == config


def test_several_addresses_or_one() -> None:
    config = orchestrator({"type": "opd", "teacher": FROZEN})
    assert config.train.source[0].algo.teacher.base_url == ["http://t/v1"]
    two = ["http://a/v1", "http://b/v1"]
    config = orchestrator({"type": "opd", "teacher": {**FROZEN, "base_url": two}})
    assert config.train.source[0].algo.teacher.base_url == two


# -- combinations


def test_rl_losses_of_one_run_aggregate_alike() -> None:
    prompt = {"type": "grpo", "loss_aggregation": "prompt"}
    orchestrator(prompt, {"type": "echo", "loss_aggregation": "prompt"}, {"type": "opd", "teacher": FROZEN})
    with pytest.raises(ValueError, match=r'train.source\[1\].*"token".*train.source\[0\].*"prompt"'):
        orchestrator(prompt, {"type": "rae"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["type", "grpx"], "algo.type: unknown type 'grpx'; must be one of grpo, max_rl, rae, "),
        (["type", "grpx"], "did you mean 'grpo'? [command line]"),
        (["decy", "0.5", "type", "rae"], "did you mean 'orchestrator.train.algo.decay'? [command line]"),
        (["loss_agregation", "prompt"], "did you mean 'orchestrator.train.algo.loss_aggregation'?"),
        (["length_penalty.wat", "1"], "algo.length_penalty.wat: unknown key; valid here: type, num_output"),
        (
            ["length_penalty.type", "lin"],
            "algo.length_penalty.type: unknown type 'lin'; must be one of linear, linear-",
        ),
        (["type", "echo", "roles.tol.alpha", "1"], "did you mean 'orchestrator.train.algo.roles.tool'?"),
        (["type", "rae", "decay", "1"], "algo.decay: input should be less than 1"),
        (["type", "opd"], "algo.teacher: is required"),
        (
            ["type", "opd", "teacher", "policy"],
            "'policy' is not a frozen model (the KL of the policy to itself is zero); set teacher.name",
        ),
        (["type", "opd", "teacher", "policy"], 'use type = "opsd"'),
        (["type", "sft"], "set sampling.source.name and sampling.source.base_url"),
        (["sampling.source", "polcy"], "'polcy' is neither \"policy\" nor a frozen model"),
        (
            ["type", "sft", "sampling.source", "policy"],
            "sampling.source is the policy itself; set sampling.source.name",
        ),
        (["type", "opd", "teacher.name", "t"], "algo.teacher.base_url: is required"),
        (
            ["type", "opsd", "teacher.name", "t"],
            "algo.teacher: unknown key",
        ),
        (["type", "max_rl", "loss_aggregation", "prompt"], "algo.loss_aggregation: unknown key"),
        (["type", "opsd", "template", "x"], "algo.template: the template has no {demonstration}"),
        (["type", "hierarchical_grpo"], "the environment has no agent 'solver', only 'agent'"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, values = flags[::2], flags[1::2]
    arguments = [part for n, v in zip(names, values) for part in (f"--orchestrator.train.algo.{n}", v)]
    assert dry_run(tmp_path, *arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert lines[0].startswith("braid rl: error: orchestrator.train.")


@pytest.mark.parametrize(
    ("algo", "component"),
    [
        *((name, "rl") for name in ("grpo", "max_rl", "rae", "hierarchical_grpo", "echo")),
        *((name, "ref_kl") for name in ("opd", "opsd")),
    ],
)
def test_a_frozen_model_samples_for_the_ce_loss_alone(
    algo: str, component: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        MINIMAL + f'algo.type = "{algo}"\nalgo.sampling.source = {{name = "t", base_url = "http://t/v1"}}\n'
    )
    text += 'algo.teacher = {name = "t", base_url = "http://t/v1"}\n' if algo == "opd" else ""
    assert dry_run(tmp_path, text=text) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(
        "braid rl: error: orchestrator.train.source[0].algo: sampling.source is a frozen model"
    )
    assert f"trains the {component} component" in error and 'use type = "sft" to imitate' in error


def test_mixed_aggregation_is_one_line_that_names_both_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = (
        '[[orchestrator.train.source]]\nname = "b"\nenv.taskset.id = "reverse-text"\nalgo.type = "max_rl"\n'
    )
    text = MINIMAL + 'algo.loss_aggregation = "prompt"\n' + second
    assert dry_run(tmp_path, text=text) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert 'train.source[1].algo aggregates the rl loss by "token", train.source[0].algo by "prompt"' in error
    assert "give every source with an rl loss the same loss_aggregation" in error


@pytest.mark.parametrize("algo", ["grpo", "max_rl", "rae", "echo", "opsd"])
def test_a_group_of_one_is_no_error_of_the_configuration(algo: str, tmp_path: Path) -> None:
    """At run time, algorithms that need siblings log a warning and do not train."""
    assert dry_run(tmp_path, text=MINIMAL + f'group_size = 1\nalgo.type = "{algo}"\n') == 0


def test_a_source_shows_its_own_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(tmp_path, text=MINIMAL + 'algo.type = "opd"\nalgo.teacher.nam = "t"\n') == 2
    error = capsys.readouterr().err
    assert "orchestrator.train.source[0].algo.teacher.nam: unknown key" in error
    assert "did you mean 'orchestrator.train.source[0].algo.teacher.name'" in error
    assert "rl.toml" in error


def test_the_dry_run_shows_every_sources_algorithm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = '[[orchestrator.train.source]]\nname = "second"\nenv.taskset.id = "reverse-text"\n'
    text = MINIMAL + 'algo.type = "echo"\n' + second
    flags = ["--orchestrator.train.algo.length_weighted_baseline", "true"]
    assert dry_run(tmp_path, *flags, text=text) == 0
    first, second = tomllib.loads(capsys.readouterr().out)["orchestrator"]["train"]["source"]
    assert (first["algo"]["type"], first["algo"]["length_weighted_baseline"]) == ("echo", False)
    assert (second["algo"]["type"], second["algo"]["length_weighted_baseline"]) == ("grpo", True)


def test_help_lists_the_types_and_whose_each_key_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["orchestrator", "--help"])
    text = capsys.readouterr().out
    assert "--train.algo.type {grpo,max_rl,rae,hierarchical_grpo,opd,opsd,sft,echo}" in text
    decay = text.split("--train.algo.decay")[1].split("--")[0]
    assert "(rae)" in decay
