"""Aggregates of columns: folds of many rows at once, and their states."""
