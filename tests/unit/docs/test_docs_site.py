"""The docs site: all pages, all keys with descriptions, and the same rendering as on GitHub."""

import re
from collections import Counter

from markdown import Markdown
from markdown_it import MarkdownIt
from mkdocs.config import load_config

from braidrl.configs.core.reference import keys_of
from braidrl.entrypoints.schema import CONFIGS, config_class
from docs_site.pages import site_path
from docs_site.reference import HIDDEN, pages
from tests.support.paths import DOCS, REPOSITORY

SHOWN = sorted([*DOCS.glob("*.md"), *REPOSITORY.glob("examples/**/*.md"), REPOSITORY / "CONTRIBUTING.md"])
BLOCKS = re.compile(r"<(h[1-6]|ol|ul|li|pre|table|tr|th|td|img|blockquote|em|strong|code)\b")
CELLS = ("type", "default", "range", "told")
ROW = re.compile(
    r"\| \[`(?P<key>\w+)`\]\(#(?P<anchor>[\w.-]+)\)\S*"
    + "".join(rf" \| (?P<{cell}>.*)" for cell in CELLS)
    + r" \|"
)
"""Row of a key in the reference."""


def anchors(page: str) -> list[str]:
    return re.findall(r"\{#([\w.-]+)\}", page)


def test_every_page_has_a_place_in_the_navigation() -> None:
    """The build warns only about missing pages inside `docs/`."""
    listed = re.findall(
        r"^\s+- (?:[^:\n]+: )?(\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE
    )
    assert len(listed) == len(set(listed))
    assert {site_path(path) for path in SHOWN} <= set(listed)


def test_every_key_is_in_the_reference_and_told() -> None:
    """In particular, every key has a description."""
    found = [row for page in pages().values() for row in rows(page)]
    assert [row["anchor"] for row in found if not row["told"]] == []
    told: dict[str, list[str]] = {}
    for row in found:
        told.setdefault(row["key"], []).append(row["told"].replace(r"\|", "|"))
    for command in CONFIGS:
        for key in keys_of(config_class(command), hidden=HIDDEN.get(command, frozenset())):
            *_, block, name = ("", *key.path.replace("[]", "").split("."))
            known = [*told.get(name, []), *(told.get(block, []) if name == "type" else [])]
            assert any(key.description.startswith(text) for text in known), (command, key.path)


def rows(page: str) -> list[re.Match[str]]:
    """Return the rows of all keys on a page."""
    lines = [line for line in page.splitlines() if line.startswith("| [")]
    matches = [match for line in lines if (match := ROW.fullmatch(line))]
    assert len(matches) == len(lines)
    return matches


def test_defaults_and_ranges_are_those_of_the_classes() -> None:
    found = {row["anchor"]: (row["type"], row["default"], row["range"]) for row in rows(pages()["rl"])}
    assert found["trainer.optim.lr"] == ("`float`", "`1e-05`", "> 0")
    assert found["trainer.loss.ipo.eps"] == ("`float`", "`0.3`", "≥ 0, ≤ 1")
    assert found["model.path"] == ("`str`", "required", "")
    assert (found["model"][1], found["trainer"][1], found["inference"][1]) == ("required", "", "")
    assert found["trainer.use_rollout_log_probs"] == ("`bool`", "`false`", "")
    assert found["trainer.lora"] == ("[`trainer.lora`](rl.md#trainer.lora)", "`none`", "")
    assert found["trainer.loss"][1] == '`type = "ipo"`'
    assert found["orchestrator.train.source.algo"][0].startswith(
        "[`grpo`](rl.md#orchestrator.train.algo.grpo) ["
    )


def test_every_link_of_the_reference_leads_to_a_section() -> None:
    found = pages()
    targets = {f"{name}.md#{anchor}" for name, page in found.items() for anchor in anchors(page)}
    links = {link for page in found.values() for link in re.findall(r"\]\((\w+\.md#[\w.-]+)\)", page)}
    assert len(links) > 40
    assert links <= targets
    for page in found.values():
        assert len(anchors(page)) == len(set(anchors(page)))


def test_lists_and_tables_are_the_same_as_elsewhere() -> None:
    """For example, the site's Markdown requires a blank line before a list and would render a paragraph otherwise."""
    config = load_config(str(REPOSITORY / "mkdocs.yml"))
    site = Markdown(extensions=config.markdown_extensions, extension_configs=config.mdx_configs)
    elsewhere = MarkdownIt("commonmark").enable("table")
    for path in SHOWN:
        text = path.read_text()
        ours, theirs = (
            Counter(BLOCKS.findall(html)) for html in (site.reset().convert(text), elsewhere.render(text))
        )
        assert ours == theirs, path
