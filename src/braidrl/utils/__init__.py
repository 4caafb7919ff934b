"""Helpers shared by all processes: run folder, atomic publishing, processes, HTTP, renderers.

Imports `configs`.
Start with `run_folder.py`.
"""
