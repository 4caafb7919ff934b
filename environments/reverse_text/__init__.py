"""Write a text backwards: a procedural taskset that a model with a million parameters learns in minutes."""

from reverse_text.taskset import ReverseTextConfig, ReverseTextData, ReverseTextTask, ReverseTextTaskset

__all__ = ["ReverseTextConfig", "ReverseTextData", "ReverseTextTask", "ReverseTextTaskset"]
