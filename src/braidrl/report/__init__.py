"""Views of a run: terminal, tables, plots and the HTML page.

Imports `monitors`, `utils` and `configs`.
Start with `reading.py`; the page is in `page/`.
"""
