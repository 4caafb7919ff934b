"""A hook of MkDocs: whatever a page links to in the repository, outside `docs/`, is a page of the site too.

Links are written as a repository's are, relative to the file that holds them, so that they work wherever Markdown is
browsed; here they are pointed at where their targets lie in the site.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
ENTRANCES = ("examples/README.md", "CONTRIBUTING.md", "AGENTS.md")
"""What has a place in the navigation, linked to or not."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|[#/])([^)\s#]+)")
"""The path in a Markdown link or image."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the pages link to, and what that links to in turn."""
    waiting = [REPOSITORY / entrance for entrance in ENTRANCES]
    for page in files.documentation_pages():
        waiting += linked(DOCS / page.src_uri, page.content_string)
    while waiting:
        path = waiting.pop()
        if path.is_relative_to(DOCS) or files.get_file_from_path(site_path(path)) is not None:
            continue
        content = page_of(path)
        files.append(
            File.generated(config, site_path(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV)
        )
        waiting += linked(path, content)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page at pages of the site."""
    here = source(page.file)
    if here is None:
        return markdown

    def follow(link: re.Match[str]) -> str:
        target = resolve(here, link[1])
        return f"/{site_path(target)}" if target else link[1]

    return LINK.sub(follow, markdown)


def linked(here: Path, content: str) -> Iterator[Path]:
    """What a file with this content links to in the repository."""
    for link in LINK.findall(content):
        if target := resolve(here, link):
            yield target


def resolve(here: Path, link: str) -> Path | None:
    """What a link of a file or folder means, of a folder that has one its README; None: nothing in the repository."""
    target = ((here if here.is_dir() else here.parent) / link).resolve()
    if not (target.exists() and target.is_relative_to(REPOSITORY)):
        return None
    return target / "README.md" if (target / "README.md").exists() else target


def site_path(path: Path) -> str:
    """Where a file or folder of the repository lies in the site, as the source of a page; the README of all is its
    start."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path == REPOSITORY / "README.md":
        return "index.md"
    inside = path.relative_to(REPOSITORY).as_posix()
    if path.is_dir():
        return f"{inside}/index.md"
    return inside if path.suffix == ".md" else f"{inside}.md"


def source(file: File) -> Path | None:
    """The file or folder of the repository that a page shows; None: it is written by another hook."""
    inside = DOCS / file.src_uri
    outside = REPOSITORY / file.src_uri
    folder = outside.parent if outside.name == "index.md" else outside
    written = (inside, outside, outside.with_suffix(""), folder)
    return next((path for path in written if path.exists()), None)


def page_of(path: Path) -> str:
    """The Markdown that shows a file or a folder."""
    if path.suffix == ".md":
        return path.read_text()
    if path.suffix == ".ipynb":
        return notebook(json.loads(path.read_text()))
    title = f"# `{path.relative_to(REPOSITORY).as_posix()}`\n\n"
    if path.is_dir():
        return title + "".join(
            f"- [{each.name}]({each.name}){about(each)}\n"
            for each in sorted(path.iterdir())
            if each.is_file()
        )
    return title + fenced(path.read_text(), path.suffix[1:])


def about(path: Path) -> str:
    """The first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) if path.suffix == ".py" else None
    return f": {text.splitlines()[0]}" if text else ""


def notebook(data: dict) -> str:
    """Its cells, without what they printed."""
    cells = (("".join(cell["source"]), cell["cell_type"]) for cell in data["cells"])
    return "\n\n".join(text if kind == "markdown" else fenced(text, "python") for text, kind in cells)


def fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````\n"
