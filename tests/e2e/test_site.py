"""The docs site: a strict build, viewed in a real browser without requests to other hosts."""

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from playwright.sync_api import expect

from tests.support.browser import looking
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.slow
LOADED = re.compile(r'<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)="(?:https?:)?//')
"""Markup for which a browser would send a network request."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built site. Warnings of the build are errors."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(REPOSITORY / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_word_is_found_and_leads_to_its_page(address: str, theme: str) -> None:
    with looking(address, theme) as look:
        look.page.goto(address)
        look.page.keyboard.press("/")  # opens the search
        look.page.keyboard.type("max_empty_batches")
        look.page.locator('.md-search-result__link[href*="reference/rl.html"]').first.click()
        expect(look.page.locator("h1")).to_contain_text("braid rl")
        assert look.page.url.partition("?")[0] == f"{address}reference/rl.html"
        before = look.background("body")
        look.page.locator(".md-header label.md-icon[for^=__palette]:visible").click()
        assert look.background("body") != before


def test_a_key_has_an_address(address: str) -> None:
    with looking(address) as look:
        look.page.goto(f"{address}reference/rl.html#trainer.optim.lr")
        row = look.page.locator("tr", has=look.page.locator('[id="trainer.optim.lr"]'))
        expect(row).to_be_in_viewport()
        assert row.locator("td").all_inner_texts()[:4] == ["lr", "float", "1e-05", "> 0"]


def test_what_lies_outside_the_docs_is_in_the_site(address: str) -> None:
    """Repository links lead from a page to an example, from there to its config, and back to the docs."""
    with looking(address) as look:
        look.page.goto(f"{address}status.html")
        look.page.locator('article a[href*="lora.toml"]').first.click()
        expect(look.page.locator("h1")).to_contain_text("examples/grpo/lora.toml")
        expect(look.page.locator("article pre")).to_contain_text("rank =")
        look.page.goto(f"{address}examples/grpo/")
        expect(look.page.locator("article img").first).to_be_visible()
        look.page.locator('article a[href*="lora.html"]').first.click()
        assert look.page.url == f"{address}lora.html"


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    loading = {page.name: LOADED.findall(page.read_text()) for page in pages}
    assert {name: found for name, found in loading.items() if found} == {}
