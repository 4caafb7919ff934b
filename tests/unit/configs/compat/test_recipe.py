"""The `algorithm` section: its expansion, and combination with other blocks."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from braidrl.cli import main
from braidrl.configs.algorithm import GRPOConfig
from braidrl.configs.compat.recipe import RecipeConfig, settings
from braidrl.configs.loss import CustomLossConfig, GRPOLossConfig, GSPOLossConfig
from braidrl.configs.rl import RLConfig
from braidrl.configs.trainer.offpolicy import ISCorrectionConfig, M2POConfig, OPSMConfig, ReferenceKLConfig
from tests.support.config_blocks import RECIPE
from tests.support.recipes import MINIMAL, dry_run


def run(algorithm: dict[str, Any] | None = None, **blocks: Any) -> RLConfig:
    """Return the config of a run with this section and other blocks (`trainer`, `algo`, `source`)."""
    train = {"source": [{"env": {"taskset": {"id": "reverse-text"}}, **blocks.pop("source", {})}]}
    if "algo" in blocks:
        train["algo"] = blocks.pop("algo")
    section = {} if algorithm is None else {"algorithm": algorithm}
    return RLConfig.model_validate(
        {"model": {"path": "m"}, "orchestrator": {"train": train}, **blocks, **section}
    )


def test_the_example_is_the_keys_that_the_processes_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(tmp_path, MINIMAL + RECIPE) == 0
    resolved = tomllib.loads(capsys.readouterr().out)
    assert "algorithm" not in resolved
    trainer, train = resolved["trainer"], resolved["orchestrator"]["train"]
    for algo in (train["algo"], train["source"][0]["algo"]):
        assert (algo["type"], algo["advantage_norm"]) == ("grpo", "group_zscore")
    assert trainer["loss"] == {
        "type": "grpo",
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.28,
        "clip_ratio_c": 10.0,
    }
    assert trainer["loss_agg_mode"] == "token-mean"
    assert trainer["is_correction"] == {
        "level": "token",
        "action": "clip",
        "lower_bound": 0.5,
        "upper_bound": 2.0,
    }
    assert trainer["opsm"] == {"delta": 0.1, "reference": "old"}
    assert "m2po" not in trainer and "reference_kl" not in trainer
    assert RLConfig.model_validate(resolved).algorithm is None


def test_toml_and_yaml_are_equivalent() -> None:
    toml = """\
[algorithm]
advantage_estimator = "grpo"
advantage_norm_mode = "group_zscore"
policy_loss = "grpo"
loss_agg_mode = "token-mean"
clip_ratio_low = 0.2
clip_ratio_high = 0.28
is_correction = {enable = true, action = "clip", level = "token", lower_bound = 0.5, upper_bound = 2.0}
opsm = {enable = true, delta = 0.1}
"""
    section = tomllib.loads(toml)["algorithm"]
    assert section == yaml.safe_load(RECIPE)["algorithm"]
    assert run(section).algorithm is None


def test_an_empty_section_has_the_documented_defaults() -> None:
    config = run({})
    assert config.orchestrator.train.source[0].algo == GRPOConfig(advantage_norm="group_zscore")
    trainer = config.trainer
    assert trainer.loss == GRPOLossConfig(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=10.0)
    assert (trainer.loss_agg_mode, trainer.entropy_coef) == ("token-mean", 0.0)
    assert trainer.is_correction is trainer.m2po is trainer.opsm is trainer.reference_kl is None


def test_no_section_changes_nothing() -> None:
    config = run()
    assert config.orchestrator.train.source[0].algo == GRPOConfig()
    assert config.trainer.loss.type == "ipo"


def test_every_block_has_the_documented_defaults_when_it_is_on() -> None:
    on = {"enable": True}
    reference = {**on, "ref_hf_model_path": "models/base"}
    trainer = run({"m2po": on, "opsm": on, "is_correction": on, "ref_kl": reference}).trainer
    assert trainer.m2po == M2POConfig(threshold=0.04)
    assert trainer.opsm == OPSMConfig(delta=0.1)
    assert trainer.is_correction == ISCorrectionConfig()
    assert trainer.reference_kl == ReferenceKLConfig(path="models/base")


EVERYTHING = {
    "advantage_norm_mode": "batch_mean",
    "policy_loss": "gspo",
    "loss_agg_mode": "seq-mean-token-mean",
    "clip_ratio_low": 3e-4,
    "clip_ratio_high": 4e-4,
    "entropy_coef": 0.01,
    "is_correction": {
        "enable": True,
        "action": "mask",
        "level": "geometric",
        "lower_bound": 0.9,
        "upper_bound": 1.1,
    },
    "m2po": {"enable": True, "threshold": 0.01},
    "opsm": {"enable": True, "delta": 0.2},
    "ref_kl": {
        "enable": True,
        "coef": 0.01,
        "kl_type": "k1",
        "use_unbiased_kl": True,
        "update_interval": 5,
        "ref_dist_ckpt_path": "outputs/run/checkpoints/step_000100",
    },
}
"""Return a section in which every key differs from its default."""


def test_everything_reaches_its_place() -> None:
    config = run(EVERYTHING)
    assert config.orchestrator.train.algo == GRPOConfig(advantage_norm="batch_mean")
    trainer = config.trainer
    assert trainer.loss == GSPOLossConfig(clip_ratio_low=3e-4, clip_ratio_high=4e-4)
    assert (trainer.loss_agg_mode, trainer.entropy_coef) == ("seq-mean-token-mean", 0.01)
    assert trainer.is_correction == ISCorrectionConfig(
        action="mask", level="geometric", lower_bound=0.9, upper_bound=1.1
    )
    assert (trainer.m2po, trainer.opsm) == (M2POConfig(threshold=0.01), OPSMConfig(delta=0.2))
    assert trainer.reference_kl == ReferenceKLConfig(
        coef=0.01,
        kl_type="k1",
        use_unbiased_kl=True,
        update_interval=5,
        path="outputs/run/checkpoints/step_000100",
    )


def test_no_key_of_the_section_is_forgotten() -> None:
    blocks = {"is_correction": {}, "m2po": {}, "opsm": {}, "ref_kl": {"ref_hf_model_path": "m"}}
    recipe = RecipeConfig.model_validate({name: {"enable": True, **keys} for name, keys in blocks.items()})
    expected = set(RecipeConfig.model_fields) - set(blocks)
    for name in blocks:
        keys = type(getattr(recipe, name)).model_fields
        expected |= {f"{name}.{key}" for key in keys if key not in ("enable", "ref_dist_ckpt_path")}
    assert {setting.key for setting in settings(recipe)} == expected


def test_gspo_reads_no_dual_clip() -> None:
    assert run({"policy_loss": "gspo", "clip_ratio_c": 5.0}).trainer.loss == GSPOLossConfig()


def test_a_block_that_is_off_stays_off_whatever_else_it_says() -> None:
    section = {
        "is_correction": {"enable": False, "level": "sequence", "upper_bound": 3.0},
        "m2po": {"threshold": 0.5},
        "opsm": {"enable": False, "delta": 1.0},
        "ref_kl": {"enable": False, "coef": 0.1, "kl_type": "k1"},
    }
    trainer = run(section).trainer
    assert trainer.is_correction is trainer.m2po is trainer.opsm is trainer.reference_kl is None


# -- combination with other blocks


def test_a_source_inherits_from_it_and_may_have_an_algorithm_of_its_own() -> None:
    section = {"advantage_norm_mode": "batch_zscore"}
    penalised = run(section, source={"algo": {"length_penalty": {}}}).orchestrator.train.source[0].algo
    assert (penalised.advantage_norm, penalised.length_penalty.type) == ("batch_zscore", "linear")
    own = run(section, source={"algo": {"advantage_norm": "none"}}).orchestrator.train
    assert (own.algo.advantage_norm, own.source[0].algo.advantage_norm) == ("batch_zscore", "none")
    assert (
        run(section, source={"algo": {"type": "max_rl"}}).orchestrator.train.source[0].algo.type == "max_rl"
    )


def test_keys_that_the_section_leaves_out_are_the_users() -> None:
    trainer = {
        "loss": {"clip_ratio_c": 3.0},
        "entropy_coef": 0.1,
        "m2po": {},
        "opsm": {"reference": "rollout"},
    }
    config = run({"opsm": {"enable": True}}, trainer=trainer, algo={"advantage_norm": "none"})
    assert config.trainer.loss == GRPOLossConfig(clip_ratio_c=3.0)
    assert (config.trainer.entropy_coef, config.trainer.m2po) == (0.1, M2POConfig())
    assert config.trainer.opsm == OPSMConfig(reference="rollout")
    assert config.orchestrator.train.algo == GRPOConfig(advantage_norm="none")


def test_a_loss_or_an_algorithm_of_the_users_own_takes_what_it_has_of_the_section() -> None:
    custom = {"loss": {"type": "custom", "import_path": "m.loss"}}
    config = run({"entropy_coef": 0.1}, trainer=custom, algo={"type": "max_rl"})
    assert config.trainer.loss == CustomLossConfig(import_path="m.loss")
    assert (config.trainer.entropy_coef, config.orchestrator.train.algo.type) == (0.1, "max_rl")
    echo = run({"advantage_norm_mode": "none"}, algo={"type": "echo"}).orchestrator.train.algo
    assert (echo.type, echo.advantage_norm) == ("echo", "none")


def test_the_same_value_twice_is_no_conflict(tmp_path: Path) -> None:
    text = MINIMAL + "algorithm: {clip_ratio_low: 0.3, policy_loss: gspo}\n"
    assert dry_run(tmp_path, text, "--trainer.loss.clip_ratio_low", "0.30") == 0
    assert dry_run(tmp_path, text, "--trainer.loss.type", "gspo") == 0


def test_a_flag_reaches_into_the_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = MINIMAL + "algorithm: {policy_loss: grpo}\n"
    assert (
        dry_run(tmp_path, text, "--algorithm.clip-ratio-low", "0.1", "--algorithm.m2po.enable", "true") == 0
    )
    trainer = tomllib.loads(capsys.readouterr().out)["trainer"]
    assert (trainer["loss"]["clip_ratio_low"], trainer["m2po"]["threshold"]) == (0.1, 0.04)


def test_the_older_spelling_of_an_algorithm_stands_beside_it_too() -> None:
    """`[orchestrator.algo]` is an alias of `[orchestrator.train.algo]`."""
    source = {"env": {"taskset": {"id": "reverse-text"}}}
    orchestrator = {"algo": {"type": "grpo", "length_penalty": {}}, "train": {"source": [source]}}
    config = RLConfig.model_validate({"model": {"path": "m"}, "orchestrator": orchestrator, "algorithm": {}})
    assert config.orchestrator.train.algo.length_penalty is not None
    assert config.orchestrator.train.algo.advantage_norm == "group_zscore"


def test_what_the_user_wrote_is_not_changed() -> None:
    data = {
        "model": {"path": "m"},
        "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "x"}}}]}},
        "trainer": {"loss": {}},
        "algorithm": {"policy_loss": "gspo"},
    }
    RLConfig.model_validate(data)
    assert data["algorithm"] == {"policy_loss": "gspo"}
    assert data["trainer"] == {"loss": {}}


def test_help_has_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rl", "--help"])
    text = capsys.readouterr().out
    assert "--algorithm.advantage_norm_mode {group_mean,group_zscore,batch_zscore,batch_mean,none}" in text
    assert "--algorithm.ref_kl.ref_hf_model_path" in text
