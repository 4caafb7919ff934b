"""The HTML: one file with everything in it. Its own rules (CSP) keep it from asking any other server for anything."""

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
"""`import ... from "braid/NAME.js"` is `static/NAME.js`."""


def page(title: str, data: Mapping[str, Any], blobs: Mapping[str, bytes], live: bool = False) -> str:
    """The whole page.

    Args:
        data: what it needs at once, as JSON (`facts` and, of a run that is written down, `changes`).
        blobs: gzipped JSON by element id, opened when it is asked for.
        live: whether it asks the server that it came from.
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
    """JSON, gzipped."""
    return gzip.compress(msgspec.json.encode(data), 6, mtime=0)


def in_script(data: Any) -> str:
    """JSON that may stand in a script element, whatever text it holds."""
    return msgspec.json.encode(data).decode().replace("<", "\\u003c")


@cache
def modules() -> dict[str, str]:
    """The page's own modules as `data:` addresses."""
    return {
        MODULE_PREFIX
        + path.name: f"data:text/javascript;base64,{base64.b64encode(path.read_bytes()).decode()}"
        for path in sorted((HERE / "static").glob("*.js"))
    }


def _library(name: str) -> str:
    """A file without the line that names its source map, which is not here."""
    return "\n".join(line for line in _text(name).splitlines() if "# sourceMappingURL=" not in line)


@cache
def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
