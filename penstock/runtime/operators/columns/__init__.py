"""Operators that work on columns."""
