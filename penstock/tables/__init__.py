"""Pushed tables: versions of a table as immutable objects, built from a source and swapped between batches.

A wing: only `admin` and `testing` may import it.
"""
