"""Builds the site of the documentation: `python -m tools.docs_site`, or `make docs`."""
