"""Statements of docs/migration.md about Braid: keys with values, metrics, commands and defaults."""

import re
import tomllib
from typing import Any

import pytest

from braidrl.cli import COMMANDS
from braidrl.configs.core.inherit import inherit
from braidrl.configs.rl import RLConfig
from tests.support.key_paths import KeyPaths
from tests.support.metric_names import explained
from tests.support.paths import DOCS

TEXT = (DOCS / "migration.md").read_text()
FRAMEWORKS = ("prime-rl", "TRL", "verl", "CODA")
ENVIRONMENT = {"env": {"taskset": {"id": "reverse-text"}}}
BASE = {"model": {"path": "model"}, "orchestrator": {"train": {"source": [ENVIRONMENT]}}}
KEYS = KeyPaths(RLConfig)


def column(kind: str) -> list[tuple[str, str]]:
    """Return (framework, code) of all entries in the columns `Braid key`, `Braid metric` or `Braid command`."""
    found = []
    for framework in FRAMEWORKS:
        section = TEXT.split(f"\n## {framework}\n")[1].split("\n## ")[0]
        for table in section.strip().split("\n\n"):
            head, *rows = table.split("\n")
            if head.startswith(f"| {framework} | Braid {kind} |"):
                cells = [re.split(r"(?<!\\) \| ?", row)[1] for row in rows[1:]]
                found += [(framework, code) for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    return found


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_has_tables_of_keys_metrics_and_commands(framework: str) -> None:
    for kind, least in (("key", 20), ("metric", 5), ("command", 3)):
        assert sum(owner == framework for owner, _ in column(kind)) >= least, kind


def test_every_key_exists_and_takes_its_value() -> None:
    for _, code in column("key"):
        path, _, value = re.sub(r"^(train|eval)\.", r"orchestrator.\1.", code).partition(" = ")
        assert KEYS.exist(path), code
        if value:
            setting = nested(path, tomllib.loads(f"value = {value}")["value"])
            RLConfig.model_validate(inherit(inherit(BASE, {"trainer": {"loss": {"type": "grpo"}}}), setting))
    assert not KEYS.exist("trainer.optim.learning_rate") and not KEYS.exist("orchestrator.train.source.ratio")


def test_every_metric_is_explained() -> None:
    assert {code for _, code in column("metric") if not explained(code)} == set()


def test_every_command_exists() -> None:
    for _, code in column("command"):
        name, command = code.split()[:2]
        assert (name, command in COMMANDS) == ("braid", True), code


def test_the_defaults_are_those_of_the_config() -> None:
    config = RLConfig.model_validate(BASE)
    trainer, orchestrator = config.trainer, config.orchestrator
    loss, algo = trainer.loss.model_dump(), orchestrator.train.algo.model_dump()
    assert (algo["type"], algo["advantage_norm"]) == ("grpo", "group_mean")
    assert (loss["type"], loss["eps"]) == ("ipo", 0.3)
    assert (trainer.loss_agg_mode, trainer.mini_batches, trainer.entropy_coef) == ("token-mean", 1, 0)
    assert trainer.reference_kl is None and trainer.is_correction is None
    assert orchestrator.constant_trainer_batch_size and orchestrator.max_off_policy_steps == 1
    assert orchestrator.train.group_size == 8
    assert (trainer.optim.lr, trainer.optim.weight_decay, trainer.optim.betas[1]) == (1e-5, 0, 0.95)
    row = "| learning rate, weight decay, second beta | 1e-5, 0, 0.95 |"
    assert row in TEXT and "| group size | 8 |" in TEXT and "| versions that a batch may be old | 1 |" in TEXT
