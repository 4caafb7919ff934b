"""Renderers built from the `renderer` config block with the `renderers` package."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.model import RendererConfig
from braidrl.utils.functions import search_here

if TYPE_CHECKING:
    from renderers import Renderer

logger = logging.getLogger(__name__)


def renderer_options(config: RendererConfig, path: str = "renderer") -> Any:
    """Return the `renderers` config for a block, or None to let the package choose by the tokenizer's name.

    `path` is the key of the block in error messages. Raises `ConfigError` for an unknown family, an option that the
    family does not have, and a custom renderer that cannot be imported.
    """
    from renderers.configs import CustomRendererConfig

    options = dict(config.model_extra or {})
    if config.name == "auto" and options.keys() - {"thinking_retention"}:
        raise ConfigError(
            path,
            f"renderer options {sorted(options)} need a renderer name; set {path}.name, for example 'qwen3'",
        )
    if config.name == "auto" and not options:
        return None
    if config.name == "custom":
        return _validated(CustomRendererConfig, path, {"import_path": config.import_path, **options})
    return _validated(_family(config.name, path), path, options)


def load_renderer(model_path: str, config: RendererConfig) -> "Renderer":
    """Create the renderer for the tokenizer of a model folder. Raises `ConfigError` if the two do not match."""
    from renderers import create_renderer
    from renderers.base import load_tokenizer

    tokenizer, options = load_tokenizer(model_path), renderer_options(config)
    with fitting(model_path, config):
        renderer = create_renderer(tokenizer, options)
    note_choice(renderer, model_path, config)
    return renderer


@contextmanager
def fitting(model_path: str, config: RendererConfig) -> Iterator[None]:
    """Turn an error while creating a renderer into a `ConfigError` that names the tokenizer and the remedy."""
    try:
        yield
    except Exception as error:
        raise ConfigError(
            "renderer",
            f"{config.name!r} does not fit the tokenizer of {model_path}: {error}; set renderer.name to the model's "
            "family, or to 'default' to use its chat template unchanged",
        ) from error


def note_choice(renderer: "Renderer", model_path: str, config: RendererConfig) -> None:
    """Log the renderer in use. Warn if `auto` found no family for the tokenizer."""
    from renderers.default import DefaultRenderer

    logger.info("renderer %s for the tokenizer of %s", type(renderer).__name__, model_path)
    if config.name == "auto" and isinstance(renderer, DefaultRenderer):
        logger.warning(
            "renderer 'auto' found no model family for %s and uses its chat template: every turn is rendered from "
            "scratch, and tool calls are not parsed. Set renderer.name to the model's family (such as 'qwen3'), or to "
            "'default' to keep this behaviour",
            model_path,
        )


def _family(name: str, path: str) -> Any:
    """Return the `renderers` config class of a model family."""
    from renderers import configs

    classes: list[Any] = [cls for cls in vars(configs).values() if isinstance(cls, type)]
    families = {
        cls.model_fields["name"].default: cls
        for cls in classes
        if issubclass(cls, configs.BaseRendererConfig) and "name" in cls.model_fields
    }
    if name not in families:
        near = get_close_matches(name, families, n=1)
        known = ", ".join(sorted(families))
        raise ConfigError(f"{path}.name", f"there is no renderer {name!r}; available: {known}", *near)
    return families[name]


def _validated(cls: Any, path: str, options: dict[str, Any]) -> Any:
    """Return the typed config. For a custom renderer this imports its class, which validates the options."""
    search_here()
    try:
        return cls(**options)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join([path, *map(str, fault["loc"])])
        if fault["type"] == "extra_forbidden":
            known = ", ".join(sorted(cls.model_fields.keys() - {"name"}))
            raise ConfigError(key, f"this renderer has no such option; its options are {known}") from error
        raise ConfigError(key, fault["msg"].removeprefix("Value error, ")) from error
    except Exception as error:  # importing a user module can raise anything
        message = f"{options.get('import_path')!r} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(f"{path}.import_path", message) from error
