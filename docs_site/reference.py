"""MkDocs hook that generates the configuration reference from the config classes.

Each command has a page, each block a section and each key a row. A block that several commands share is documented
once, on the first page that has it (`braid rl` has most). The other pages link to it.
"""

from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from braidrl.configs.core.faults import models_in
from braidrl.configs.core.reference import described, type_name
from braidrl.configs.eval_command import SHARED_COPIES as COPIES_OF_EVAL
from braidrl.configs.rl import SHARED_COPIES as COPIES_OF_RL
from braidrl.entrypoints.commands import COMMANDS
from braidrl.entrypoints.schema import CONFIGS, config_class

HIDDEN = {"rl": COPIES_OF_RL, "eval": COPIES_OF_EVAL}
"""Keys that `--help` of a command omits, because they are copies of keys at the root."""
LIMITS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "min_length": "not empty"}
"""Notation of the bounds of a key."""
HEADER = "| key | type | default | range | meaning |\n|---|---|---|---|---|\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    for name, content in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def pages() -> dict[str, str]:
    """Return the Markdown of each page by name. `index` links to the others."""
    documented: dict[type[BaseModel], str] = {}
    command_pages = {command: Writer(command, documented).page() for command in CONFIGS}
    lines = [f"- [`braid {command}`]({command}.md): {COMMANDS[command]}" for command in CONFIGS]
    return {"index": INDEX + "\n".join(lines) + "\n", **command_pages}


INDEX = """\
# Configuration reference

All keys of the commands that read config files, generated from the config classes. Keys are written as on the command
line: a dot separates nested tables, `[]` stands for an element of a list (`[[...]]` in TOML), and `NAME` for a name
that you choose. [Configuration](../configuration.md) explains how files and flags are combined.
`braid COMMAND --help` and [editors](../editor.md) show the same descriptions.

"""


@dataclass
class Writer:
    """Writer of the page of a command."""

    command: str
    documented: dict[type[BaseModel], str]
    """Link to the section of each documented config class; shared by all pages."""
    sections: list[str] = field(default_factory=list)

    def page(self) -> str:
        cls = config_class(self.command)
        self.section(cls, "")
        return f"# `braid {self.command}`\n\n{doc(cls)}\n\n" + "\n".join(self.sections)

    def section(self, cls: type[BaseModel], path: str) -> None:
        """Add the section of the block at `path`, followed by the sections of its nested blocks."""
        anchor = anchor_of(path, cls)
        self.documented[cls] = f"{self.command}.md#{anchor}"
        hidden = HIDDEN.get(self.command, frozenset())
        # `row` appends the sections of nested blocks, so this section's place is reserved first.
        here = len(self.sections)
        self.sections.append("")
        rows = ""
        for name, key in cls.model_fields.items():
            inside = f"{path}.{name}" if path else name
            if inside not in hidden and not (name == "type" and tag(cls)):
                rows += self.row(name, key, inside, f"{anchor}.{name}" if anchor else name)
        self.sections[here] = heading(cls, path, anchor) + HEADER + rows

    def row(self, name: str, key: FieldInfo, path: str, anchor: str) -> str:
        blocks = [self.block(model, place(path, key.annotation)) for model in models_in(key.annotation)]
        kind = " ".join(blocks) or f"`{type_name(key.annotation).replace('|', ' or ')}`"
        # The heading of a nested block's section has the same anchor; a second one would be a duplicate.
        has_section = f"{self.command}.md#{anchor}" in self.documented.values()
        link = f"[`{name}`](#{anchor})" + ("" if has_section else f"{{#{anchor}}}")
        start = "" if self.filled(key, path) else default(key)
        cells = (link, kind, start, limits(key), described(key))
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"

    def filled(self, key: FieldInfo, path: str) -> bool:
        """Return True if keys at the root set all required keys of a block, so that a file can omit it."""
        needed = [
            f"{path}.{name}"
            for model in models_in(key.annotation)
            for name, each in model.model_fields.items()
            if each.is_required()
        ]
        return bool(needed) and HIDDEN.get(self.command, frozenset()).issuperset(needed)

    def block(self, model: type[BaseModel], path: str) -> str:
        """Return a link to the section of a block. The section is added if no page has it yet."""
        if model not in self.documented:
            self.section(model, path)
        target = self.documented[model]
        return f"[`{tag(model) or target.partition('#')[2]}`]({target})"


def place(path: str, annotation: Any) -> str:
    """Return the path of a block inside a key: `[]` is appended for a list, `.NAME` for a dictionary."""
    return path + {list: "[]", dict: ".NAME"}.get(get_origin(annotation), "")


def tag(cls: type[BaseModel]) -> str | None:
    """Return the value of `type` that selects this block, or None if it is not one of several types."""
    only = get_args(cls.model_fields["type"].annotation) if "type" in cls.model_fields else ()
    return only[0] if len(only) == 1 else None


def anchor_of(path: str, cls: type[BaseModel]) -> str:
    """Return the anchor of a block on its page: its path, followed by its type if it is one of several."""
    return ".".join(filter(None, (path.replace("[]", ""), tag(cls))))


def heading(cls: type[BaseModel], path: str, anchor: str) -> str:
    if not path:
        return ""
    which = f", type `{tag(cls)}`" if tag(cls) else ""
    return f"{'#' * min(2 + path.count('.'), 4)} `{path}`{which} {{#{anchor}}}\n\n{doc(cls)}\n\n"


def default(key: FieldInfo) -> str:
    """Return the default of a key. For a block, return only the values that differ from the defaults of its keys."""
    if key.is_required():
        return "required"
    value = value_of(key)
    if not isinstance(value, BaseModel):
        return f"`{written(value)}`"
    own = {name: each for name, each in value if each != value_of(type(value).model_fields[name])}
    chosen = {"type": tag(type(value))} if tag(type(value)) else {}
    return ", ".join(f"`{name} = {written(each)}`" for name, each in (chosen | own).items())


def value_of(key: FieldInfo) -> Any:
    return key.get_default(call_default_factory=True, validated_data={})


def written(value: Any) -> str:
    """Return a value in approximately the notation of a TOML file."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"') if isinstance(value, str | list | dict) else str(value)


def limits(key: FieldInfo) -> str:
    """Return the range of a key."""
    found = ((getattr(bound, name, None), text) for bound in key.metadata for name, text in LIMITS.items())
    return ", ".join(text.format(limit) for limit, text in found if limit is not None)


def doc(cls: type[BaseModel]) -> str:
    return " ".join((cls.__doc__ or "").split())
