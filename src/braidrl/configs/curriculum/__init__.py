"""Configs of the built-in task samplers and admission gates.

Imports `configs.core`.
Start with `samplers.py`. `CurriculumConfig`, which combines them, is in `configs/orchestrator.py`.
"""
