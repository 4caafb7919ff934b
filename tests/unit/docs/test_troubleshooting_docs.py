"""Metrics, keys and messages of docs/troubleshooting.md exist."""

import re

from braidrl.configs.rl import RLConfig
from tests.support.key_paths import KeyPaths
from tests.support.metric_names import explained
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", TEXT)
METRIC = re.compile(r"[a-z0-9_]+(?:/[A-Za-z0-9_@]+)+")
FOLDERS = ("metrics/", "outputs/", "logs/")
NOT_KEYS = {"run.toml"}
WITHOUT_SLASH = {
    "zero_signal",
    "mismatch_kl",
    "is_masked",
    "clip_ratio",
    "grad_norm",
    "truncated",
    "stepped",
    "ref_kl",
}


def test_every_metric_exists() -> None:
    named = {code for code in CODE if METRIC.fullmatch(code) and not code.startswith(FOLDERS)}
    assert len(named) >= 30 and set(CODE) >= WITHOUT_SLASH
    named = {name.replace("mismatch_kl/env/NAME", "METRIC/env/NAME") for name in named | WITHOUT_SLASH}
    assert {name for name in named if not explained(name)} == set()


def test_every_key_exists() -> None:
    keys = KeyPaths(RLConfig)
    dotted = {
        code.partition(" = ")[0] for code in CODE if re.fullmatch(r"[a-z_]+(?:\.[a-z_0-9]+)+(?: = .+)?", code)
    }
    flags = {
        flag
        for flag in re.findall(r"--([a-z]+(?:\.[a-z_]+)+)", TEXT)
        if not flag.startswith(("algo", "against"))
    }
    wanted = {
        f"orchestrator.train.{key}" if key.startswith("algo.") else key for key in dotted | flags
    } - NOT_KEYS
    assert len(wanted) > 30
    assert {key for key in wanted if not keys.exist(key)} == set()


def test_every_message_that_it_quotes_is_one() -> None:
    sources = "\n".join(path.read_text() for path in (REPOSITORY / "src").rglob("*.py"))
    said = re.sub(r'["\s]*\n\s*f?"', "", sources)
    section = TEXT.split("\n### The run seems to hang\n")[1].split("\n### ")[0]
    section += TEXT.split("\n### Resume refuses\n")[1].split("\n### ")[0]
    quoted = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    quoted += ["log-probs, loss or gradient are not finite", "without any signal", "no progress"]
    quoted += ["the episode was not generated and scored within"]
    assert len(quoted) > 9
    for message in quoted:
        assert message in TEXT
        for part in re.split(r"\b[N]\b", message):
            assert part.strip() in said, message


def test_every_symptom_has_its_section() -> None:
    linked = re.findall(r"\]\(#([a-z0-9-]+)\)", TEXT)
    sections = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^##+ (.+)$", TEXT, re.MULTILINE)
    }
    assert set(linked) <= sections
    assert sections - set(linked) == {"learning", "running"}
