"""From Braid's renderer block to the `renderers` package's own typed config."""

from typing import TYPE_CHECKING, Any

from braidrl.configs.model import RendererConfig

if TYPE_CHECKING:
    from renderers import Renderer


def renderer_options(config: RendererConfig) -> Any:
    """The `renderers` config of this block; None lets the package choose by the tokenizer's name.

    Raises `ValueError` for an unknown family or an option that the family does not have, and `FileNotFoundError` for
    a custom renderer's file that is not there.
    """
    from renderers import config_from_name
    from renderers.configs import CustomRendererConfig

    options = dict(config.model_extra or {})
    if config.import_path is not None:
        options["import_path"] = config.import_path
    if config.name == "auto":
        if options:
            raise ValueError(
                f"renderer options {sorted(options)} need a renderer name; set renderer.name, for example 'qwen3'"
            )
        return None
    family = CustomRendererConfig if config.name == "custom" else type(config_from_name(config.name))
    return family(**options)


def load_renderer(model_path: str, config: RendererConfig) -> "Renderer":
    """The renderer of a model folder's tokenizer."""
    from renderers import create_renderer
    from renderers.base import load_tokenizer

    return create_renderer(load_tokenizer(model_path), renderer_options(config))
