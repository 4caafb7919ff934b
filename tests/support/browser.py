"""A real, headless Chromium that shows a page and records errors and network requests."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
READY_SECONDS = 60
VIEWPORT = {"width": 1360, "height": 900}


def chromium() -> str:
    """Return the path of Chromium, from `BRAID_CHROMIUM` or `PATH`. Skips the test if there is none."""
    found = os.environ.get("BRAID_CHROMIUM") or shutil.which("chromium")
    if not found:
        pytest.skip("no chromium on this machine; install one or name it in BRAID_CHROMIUM")
    return found


class Look:
    """A page under test. `errors` collects console errors, `requests` network requests."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on(
            "console",
            lambda each: self.errors.append(each.text) if each.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda each: self.requests.append(each.url))

    def go(self, place: str, view: str) -> None:
        """Open the page at `#place` and wait until `view` is drawn."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}#{place}")
        self.ready(view)

    def ready(self, view: str) -> None:
        """Wait until `view` is drawn."""
        self.page.wait_for_selector(f'body[data-ready="{view}"]', timeout=READY_SECONDS * 1000)

    def tip(self) -> dict[str, float]:
        """Return the numbers in the tooltip, by name."""
        found = self.page.eval_on_selector_all(
            "#tip:not([hidden]) dd", "all => all.map((each) => [each.dataset.name, each.textContent])"
        )
        return {name: float(text) for name, text in found}

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def background(self, selector: str) -> str:
        """Return the background colour of the first matching element."""
        return self.page.eval_on_selector(selector, "each => getComputedStyle(each).backgroundColor")

    @property
    def foreign(self) -> list[str]:
        """Return the requests for other resources than the page and its inline data."""
        own = (self.address, "data:", "blob:", "about:")
        return [each for each in self.requests if not each.startswith(own)]


@contextmanager
def looking(address: str | Path, theme: str = "light") -> Iterator[Look]:
    """Open an address or a file in a browser. On exit, assert that there were no errors and no unexpected requests."""
    where = address.absolute().as_uri() if isinstance(address, Path) else address
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            page = browser.new_page(viewport=VIEWPORT, color_scheme=theme)
            look = Look(page, where)
            yield look
            assert look.errors == []
            assert look.foreign == []
        finally:
            browser.close()
