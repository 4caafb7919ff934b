"""The JSON schema of config files: it accepts all files of the repository, describes each key, and rejects faults."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from braidrl.configs.core.inherit import inherit
from braidrl.configs.core.schema import file_schema
from braidrl.entrypoints import schema
from braidrl.entrypoints.schema import CONFIGS, config_class
from tests.support.documents import DOCUMENTS, READERS, REPOSITORY, blocks_of, name_of

RECIPES = sorted(REPOSITORY.glob("examples/*/*.toml"))
SOURCE = {"env": {"taskset": {"id": "reverse-text"}}}


def validator(command: str) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(file_schema(config_class(command)))


def faults(command: str, data: Any) -> list[str]:
    """Return the errors of a file against the schema of a command, with their paths."""
    found = validator(command).iter_errors(data)
    return [f"{'.'.join(map(str, fault.absolute_path))}: {fault.message}" for fault in found]


@pytest.mark.parametrize("command", CONFIGS)
def test_every_command_has_a_valid_schema(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema.main([command]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.Draft7Validator.check_schema(printed)
    cls = config_class(command)
    assert printed["title"] == cls.__name__ and printed["properties"].keys() == cls.model_fields.keys()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_example_validates(recipe: Path) -> None:
    kinds = {"sft": "sft", "teacher": "inference"}
    command = next((command for kind, command in kinds.items() if kind in recipe.stem), "rl")
    assert faults(command, tomllib.loads(recipe.read_text())) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_file_in_the_documents_validates(document: Path) -> None:
    for block in blocks_of(document):
        if block.language in READERS and "project" not in block.data:
            assert faults(block.command, block.data) == [], block.place


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        ({"trainer": {"optim": {"lrr": 1}}}, "trainer.optim: Additional properties"),
        ({"max_steps": 0}, "max_steps: 0 is less than the minimum of 1"),
        ({"model": {"dtype": "fp8"}}, "model.dtype: 'fp8' is not one of"),
        ({"trainer": {"loss": {"type": "gpro"}}}, "trainer.loss: "),
        ({"trainer": {"loss": {"type": "ipo", "clip_ratio_c": 3.0}}}, "trainer.loss: "),
        ({"tracker": [{"type": "wandb", "projet": "p"}]}, "tracker.0: "),
        (
            {"orchestrator": {"train": {"algo": {"type": "opd", "teacher": "policy"}}}},
            "orchestrator.train.algo: ",
        ),
    ],
)
def test_faults_are_found_at_their_place(file: dict[str, Any], fault: str) -> None:
    (found,) = faults("rl", file)
    assert found.startswith(fault)


@pytest.mark.parametrize(
    "train",
    [
        {"source": [SOURCE | {"algo": {"decay": 0.9}}], "algo": {"type": "rae"}},
        {"source": [SOURCE | {"algo": {"length_penalty": "None"}}]},
        {"source": [SOURCE | {"curriculum": {"gates": {"mine": "None"}}}]},
        {"algo": {"type": "opd", "teacher": {"name": "t", "base_url": "http://h/v1"}}},
        {"algo": {"type": "opd", "teacher": {"name": "t", "base_url": ["http://h/v1", "http://i/v1"]}}},
        {"algo": {"type": "opsd", "renderer": "qwen3"}},
    ],
)
def test_what_a_block_may_leave_out_or_write_shorter_is_no_fault(train: dict[str, Any]) -> None:
    data = {"model": {"path": "m"}, "orchestrator": {"train": inherit({"source": [SOURCE]}, train)}}
    assert faults("rl", data) == []
    config_class("rl").model_validate(data)


def test_every_key_says_what_it_means() -> None:
    found = file_schema(config_class("rl"))
    silent = [
        f"{name}.{key}"
        for name, block in found["$defs"].items()
        for key, value in block.get("properties", {}).items()
        if not value.get("description") and "const" not in value
    ]
    assert silent == []
    assert found["properties"]["max_steps"]["description"] == "Number of training steps, one per batch."
    assert found["properties"]["max_steps"]["default"] == 100


def test_the_engine_of_the_editors_takes_the_comment_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "braid.schema.json").write_text(json.dumps(file_schema(config_class("rl"))))

    def lint(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "run.toml").write_text(f"#:schema ./braid.schema.json\n{text}")
        command = [str(Path(sys.executable).parent / "taplo"), "lint", "--colors", "never", "run.toml"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert lint((REPOSITORY / "examples" / "mixed" / "rl.toml").read_text()).returncode == 0
    wrong = lint("[trainer.optim]\nlrr = 1.0\n")
    assert wrong.returncode != 0 and "'lrr' was unexpected" in wrong.stderr
