"""Values of PySpark's state variables as bytes, and rows as PySpark's values."""
