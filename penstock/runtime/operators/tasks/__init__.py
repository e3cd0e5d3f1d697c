"""Operators that run tasks of the application."""
