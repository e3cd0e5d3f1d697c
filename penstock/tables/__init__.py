"""Pushed tables: versions of a table as immutable objects, and where new ones come from."""
