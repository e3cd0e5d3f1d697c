"""Pushed tables: versions of a table as immutable objects, built from a source and swapped between batches."""
