"""Aggregates of columns: folds of many rows at once, and their states.

Only `admin`, `testing`, PySpark's side and the operators by column may import it.
"""
