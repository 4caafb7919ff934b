"""Parts of the page: reasons, branches, token texts, samples, scripts and libraries."""

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from braidrl.report.page.changes import whole_steps
from braidrl.report.page.html import HERE, in_script, modules
from braidrl.report.page.index import SAMPLE_COLUMNS
from braidrl.report.page.pieces import Vocabulary
from braidrl.report.page.reasons import REASONS, BranchContext, reasons
from braidrl.report.page.rollout import branches, node_versions, text_of


def test_samples_are_left_out_by_whole_steps() -> None:
    step = SAMPLE_COLUMNS.index("step")
    samples = [tuple(number if column == step else 0 for column in range(10)) for number in range(1, 11)] * 3
    samples.sort(key=lambda row: row[step])
    kept = whole_steps(samples, 12)
    assert {row[step] for row in kept} == {1, 4, 7, 10}
    assert len(kept) == 12


def circumstances(**changes: Any) -> BranchContext:
    return BranchContext(**{"kind": "train", "outcome": "signal", "fate": "trained", **changes})


NODE = {"mask": [False, True], "is_content": [False, True], "advantages": [0.5], "loss_weights": None}


@pytest.mark.parametrize(
    ("node", "changes", "letter"),
    [
        ({}, {}, "U"),
        ({}, {"fate": None}, "B"),
        ({}, {"fate": "stale"}, "O"),
        ({}, {"outcome": "rejected"}, "J"),
        ({}, {"outcome": "too_few"}, "G"),
        ({}, {"trainable": False}, "F"),
        ({}, {"error": True}, "X"),
        ({}, {"reward": False}, "N"),
        ({}, {"compacted": True}, "K"),
        ({}, {"too_long": True}, "L"),
        ({}, {"kind": "eval"}, "E"),
        ({"advantages": [0.0]}, {}, "0"),
        ({"advantages": None}, {}, "A"),
        ({"loss_weights": {"rl": [0.0, 0.0]}}, {}, "W"),
        ({"loss_weights": {"rl": [0.0, 0.0], "ref_kl": [0.0, 1.0]}, "advantages": None}, {}, "U"),
        ({}, {"sample": {"positions": [1], "pull": [0.0]}}, "R"),
        ({}, {"sample": {"positions": [1], "pull": [0.0], "loss_weights": [0.0]}}, "M"),
        ({}, {"sample": {"positions": [1], "pull": [-0.1]}}, "T"),
        ({}, {"sample": {}}, "U"),
    ],
)
def test_reasons(node: dict[str, Any], changes: dict[str, Any], letter: str) -> None:
    assert reasons([NODE | node], [False], circumstances(**changes)) == f"P{letter}"
    assert letter in REASONS


def test_an_observation_trains_without_siblings() -> None:
    observed = {"mask": [False], "is_content": [True], "advantages": None, "loss_weights": {"ce": [0.1]}}
    assert reasons([observed], [False], circumstances(outcome="too_few")) == "U"
    assert reasons([observed], [True], circumstances()) == "S"


def test_branches_are_those_of_verifiers() -> None:
    link = {"semantic_parents": [{"node": 1, "type": "compaction"}]}
    attempt = {"semantic_parents": [{"node": 0, "type": "compaction_attempt"}]}
    nodes = [{"parent": None}, {"parent": 0} | attempt, {"parent": 0} | attempt, {"parent": None} | link]
    assert branches({"nodes": nodes}) == [([0, 1], True), ([0, 2], False), ([3], True)]


def test_versions_go_to_the_message_with_as_many_tokens() -> None:
    nodes = [{"mask": [False]}, {"mask": [True, True]}, {"mask": [True]}]
    assert node_versions({"nodes": nodes}, [[[3, 1]], [[1, 1], [2, 1]]]) == [None, [1, 2], [3]]
    assert node_versions({"nodes": nodes}, [[[3, 7]]]) == [None, None, None]


def test_text_of_parts() -> None:
    assert text_of([{"type": "text", "text": "a"}, {"type": "image_url"}]) == "a\n[image_url]"
    assert text_of(None) == "" and text_of("b") == "b"


def test_pieces_of_a_byte_level_vocabulary(tiny_model_dir: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    ids = tokenizer.encode("a nö\n<|im_end|>")
    pieces = Vocabulary.load(tiny_model_dir / "tokenizer.json").of([*ids, 10**6])
    raw = b"".join(each.encode() if isinstance(each, str) else bytes(each) for each in map(pieces.get, ids))
    assert raw.decode() == "a nö\n<|im_end|>"
    assert [195] in pieces.values() and 10**6 not in pieces


def test_pieces_of_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    vocab = [["<unk>", 0.0], ["▁a", -1.0], ["<0xC3>", -2.0], ["</s>", 0.0]]
    special = [{"id": 3, "content": "</s>"}]
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    path.write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": special, "decoder": decoder}))
    assert Vocabulary.load(path).of([1, 2, 3]) == {1: " a", 2: [0xC3], 3: "</s>"}
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"is not a valid tokenizer\.json.*--tokenizer"):
        Vocabulary.load(path)


def test_what_a_model_wrote_never_becomes_markup() -> None:
    assert "</script>" not in in_script({"text": "</script><script>alert(1)</script>"})


def test_modules_are_small_and_name_each_other() -> None:
    known = modules()
    for path in (HERE / "static").glob("*.js"):
        text = path.read_text()
        assert len(text.splitlines()) < 300
        assert set(re.findall(r'from "(braid/[^"]+)"', text)) <= known.keys(), path.name
        assert "innerHTML" not in text and "fetch(" not in text.replace("await fetch(path)", "")


def test_vendored_files_are_those_that_are_named_and_carry_their_licence() -> None:
    vendor = HERE / "vendor"
    libraries = tomllib.loads((vendor / "vendor.toml").read_text())
    files = {name: digest for each in libraries.values() for name, digest in each["files"].items()}
    for name, digest in files.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest, name
    licences = {f"{name}.LICENSE.txt" for name in libraries}
    assert {path.name for path in vendor.iterdir()} == {*files, *licences, "vendor.toml"}
    assert all("MIT License" in (vendor / name).read_text() for name in licences)
    assert f"v{libraries['uPlot']['version']}" in (vendor / "uPlot.iife.min.js").read_text()[:100]
