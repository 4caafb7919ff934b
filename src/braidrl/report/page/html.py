"""Assembly of the page as one self-contained HTML file. Its content security policy forbids requests elsewhere."""

import base64
import gzip
import html
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent
LIBRARIES = ("vendor/uPlot.iife.min.js", "vendor/tabulator.min.js")
STYLES = ("vendor/uPlot.min.css", "vendor/tabulator_simple.min.css", "static/style.css", "static/tokens.css")
MODULE_PREFIX = "braid/"
"""Prefix of the page's modules in the import map: `braid/NAME.js` is `static/NAME.js`."""


def page(title: str, data: Mapping[str, Any], blobs: Mapping[str, bytes], live: bool = False) -> str:
    """Return the HTML of the page.

    Args:
        data: JSON that the page parses on load (`facts` and, unless it is live, `opened`).
        blobs: gzipped JSON by element id, decompressed on demand.
        live: True if the page requests data from the server that it came from.
    """
    parts = {
        "title": html.escape(title),
        "connect": "'self'" if live else "'none'",
        "styles": "\n".join(map(_library, STYLES)),
        "libraries": "\n".join(f"<script>{_library(name)}</script>" for name in LIBRARIES),
        "imports": msgspec.json.encode({"imports": modules()}).decode(),
        "data": in_script(data),
        "blobs": "\n".join(
            f'<script type="text/plain" id="{name}">{base64.b64encode(blob).decode()}</script>'
            for name, blob in blobs.items()
        ),
    }
    text = _text("static/page.html")
    for name, part in parts.items():
        before, after = text.split(f"<!--{name}-->")
        text = before + part + after
    return text


def packed(data: Any) -> bytes:
    """Return `data` as gzipped JSON."""
    return gzip.compress(msgspec.json.encode(data), 6, mtime=0)


def in_script(data: Any) -> str:
    """Return `data` as JSON that is safe in a script element: `<` is escaped, so no text can close the element."""
    return msgspec.json.encode(data).decode().replace("<", "\\u003c")


@cache
def modules() -> dict[str, str]:
    """Return the page's modules as `data:` URLs, by import name."""
    return {
        MODULE_PREFIX
        + path.name: f"data:text/javascript;base64,{base64.b64encode(path.read_bytes()).decode()}"
        for path in sorted((HERE / "static").glob("*.js"))
    }


def _library(name: str) -> str:
    """Return a library file without its source map reference, because source maps are not included."""
    return "\n".join(line for line in _text(name).splitlines() if "# sourceMappingURL=" not in line)


@cache
def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
