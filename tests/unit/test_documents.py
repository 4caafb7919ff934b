"""Compatibility with the documents that define the interfaces: config blocks equal ours, and Python blocks run.

The documents are not part of the repository. `BRAID_DOCUMENTS` names their folder; without it, this module is skipped.
"""

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from braidrl.trainer.rl import loss
from tests.support.config_blocks import BLOCKS, OLDER_BLOCKS, RECIPE, block_named, merge, run_config
from tests.support.user_code import check_centred_algorithm, check_clipped_ppo

FOLDER = os.environ.get("BRAID_DOCUMENTS")
if FOLDER is None:
    pytest.skip("BRAID_DOCUMENTS names no folder with the documents", allow_module_level=True)

CONTINUED = "[orchestrator.train.algo.filter]"
"""First line of a block that continues the previous one."""


def text_of(number: str) -> str:
    (document,) = Path(FOLDER).glob(f"{number}_*")
    return document.read_text()


def fenced(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def configurations() -> list[dict[str, Any]]:
    """Return every TOML block of document 000 in order, as the config of a run."""
    blocks: list[dict[str, Any]] = []
    for source in fenced("toml", text_of("000")):
        block = tomllib.loads(source)
        train = block.get("orchestrator", {}).get("train", {})
        if isinstance(train.get("source"), dict):
            train["source"] = [{"env": {"taskset": {"id": "reverse-text"}}, **train["source"]}]
        blocks.append(merge(blocks[-1], block) if source.startswith(CONTINUED) else block)
    return blocks


def test_every_block_is_one_of_ours() -> None:
    assert [run_config(block) for block in configurations()] == [block_named(name) for name in BLOCKS]


def test_the_older_blocks_are_ours() -> None:
    """Document 001 has the older blocks, without fences."""
    text = text_of("001")
    mixed, rest = text[text.index("[orchestrator.algo]") :].split("Or multi-teacher OPD")
    several = rest[rest.index("[[orchestrator") : rest.index("prime-rl only ever")]
    assert [tomllib.loads(block) for block in (mixed, several)] == [
        tomllib.loads(block) for block in OLDER_BLOCKS.values()
    ]


def test_the_algorithm_section_is_ours() -> None:
    (section,) = re.findall(r"^algorithm:\n(?:  .*\n)+", text_of("002"), flags=re.MULTILINE)
    assert yaml.safe_load(section) == yaml.safe_load(RECIPE)


def test_the_custom_loss_trains(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of document 000 with the package renamed, and its config."""
    text = text_of("000").split("### Custom Loss")[1]
    module, block = fenced("python", text)[0], tomllib.loads(fenced("toml", text)[0])
    assert module.startswith("# my_module.py") and module.count("prime_rl") == 1
    (tmp_path / "my_module.py").write_text(module.replace("prime_rl", "braidrl"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    check_clipped_ppo(tiny_model_dir, block["trainer"]["loss"])
    del sys.modules["my_module"]


def test_the_fields_of_a_loss_come_first() -> None:
    """`LossInputs` and `LossOutputs` begin with the fields of document 000 in the same order."""
    for name, body in re.findall(
        r"class (\w+):\n((?:    .*\n)+)", text_of("000").split("The dataclasses:")[1]
    ):
        fields = re.findall(r"^    (\w+):", body, re.MULTILINE)
        assert list(getattr(loss, name).__dataclass_fields__)[: len(fields)] == fields


async def test_the_algorithm_that_it_authors_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snippet of document 000 with the package renamed and its placeholder replaced by a credit."""
    (code,) = [code for code in fenced("python", text_of("000")) if "MyAlgorithm" in code]
    assert code.count("prime_rl.") == 2 and code.count("advantages = ...") == 1
    scope: dict[str, Any] = {}
    exec(code.replace("prime_rl.", "braidrl.").replace("= ...", "= rewards - rewards.mean()"), scope)
    await check_centred_algorithm(scope["MyAlgorithm"], monkeypatch)
