"""Operators that work on columns. Found by name: only `admin`, `testing` and PySpark's side may import them."""
