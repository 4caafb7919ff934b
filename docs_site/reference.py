"""A hook of MkDocs: the configuration reference, written at each build from the config classes that the commands read.

A page a command, a section a block, a row a key. What several places share is told once: by the first page that has it
(`braid rl` has most), to which the others link.
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
"""Keys that `--help` of a command leaves out: they are set at the root."""
LIMITS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "min_length": "not empty"}
"""How the bounds of a key are written."""
HEADER = "| key | type | default | range | what it is |\n|---|---|---|---|---|\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, content in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def pages() -> dict[str, str]:
    """The Markdown of each page by its name; `index` leads to the others."""
    told: dict[type[BaseModel], str] = {}
    written = {command: Writer(command, told).page() for command in CONFIGS}
    lines = [f"- [`braid {command}`]({command}.md): {COMMANDS[command]}" for command in CONFIGS]
    return {"index": INDEX + "\n".join(lines) + "\n", **written}


INDEX = """\
# Configuration reference

Every key of every command that reads files, from the classes that check them. A key is written as it is on the command
line; a dot goes into a table of the file, `[]` stands for one of several (`[[...]]` in TOML), `NAME` for a name of
yours. [Configuration](../configuration.md) says how files and flags go together; `braid COMMAND --help` and
[editors](../editor.md) tell the same.

"""


@dataclass
class Writer:
    """What writes the page of a command."""

    command: str
    told: dict[type[BaseModel], str]
    """Config classes that have a section, and its address."""
    sections: list[str] = field(default_factory=list)

    def page(self) -> str:
        cls = config_class(self.command)
        self.section(cls, "")
        return f"# `braid {self.command}`\n\n{doc(cls)}\n\n" + "\n".join(self.sections)

    def section(self, cls: type[BaseModel], path: str) -> None:
        """The keys of a block at `path`, and below them those of the blocks in it."""
        anchor = anchor_of(path, cls)
        self.told[cls] = f"{self.command}.md#{anchor}"
        hidden = HIDDEN.get(self.command, frozenset())
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
        told_below = f"{self.command}.md#{anchor}" in self.told.values()
        link = f"[`{name}`](#{anchor})" + ("" if told_below else f"{{#{anchor}}}")
        start = "" if self.filled(key, path) else default(key)
        cells = (link, kind, start, limits(key), described(key))
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"

    def filled(self, key: FieldInfo, path: str) -> bool:
        """Whether a block may be left out of a file because keys at the root say all that it needs."""
        needed = [
            f"{path}.{name}"
            for model in models_in(key.annotation)
            for name, each in model.model_fields.items()
            if each.is_required()
        ]
        return bool(needed) and HIDDEN.get(self.command, frozenset()).issuperset(needed)

    def block(self, model: type[BaseModel], path: str) -> str:
        """A link to the section that tells of a block; it is written now, unless another place had it."""
        if model not in self.told:
            self.section(model, path)
        return f"[`{tag(model) or self.told[model].partition('#')[2]}`]({self.told[model]})"


def place(path: str, annotation: Any) -> str:
    """Where a block stands: in a list or under a name, maybe."""
    return path + {list: "[]", dict: ".NAME"}.get(get_origin(annotation), "")


def tag(cls: type[BaseModel]) -> str | None:
    """What `type` must be for a block to be this one of several."""
    only = get_args(cls.model_fields["type"].annotation) if "type" in cls.model_fields else ()
    return only[0] if len(only) == 1 else None


def anchor_of(path: str, cls: type[BaseModel]) -> str:
    """The address of a block in its page: where it stands and, where it can be several things, what it is."""
    return ".".join(filter(None, (path.replace("[]", ""), tag(cls))))


def heading(cls: type[BaseModel], path: str, anchor: str) -> str:
    if not path:
        return ""
    which = f", type `{tag(cls)}`" if tag(cls) else ""
    return f"{'#' * min(2 + path.count('.'), 4)} `{path}`{which} {{#{anchor}}}\n\n{doc(cls)}\n\n"


def default(key: FieldInfo) -> str:
    """A key's default; of a block, what sets it apart from the defaults of its own keys."""
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
    """A value, nearly as a file has it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"') if isinstance(value, str | list | dict) else str(value)


def limits(key: FieldInfo) -> str:
    """The range of a key."""
    found = ((getattr(bound, name, None), text) for bound in key.metadata for name, text in LIMITS.items())
    return ", ".join(text.format(limit) for limit, text in found if limit is not None)


def doc(cls: type[BaseModel]) -> str:
    return " ".join((cls.__doc__ or "").split())
