"""Helpers without knowledge of a run's stages: run folder, atomic publishing, processes, HTTP, renderers.

Imports `configs`.
Start with `run_folder.py`.
"""
