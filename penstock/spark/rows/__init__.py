"""Rows of DataFrames as messages."""
