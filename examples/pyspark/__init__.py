"""PySpark's StatefulProcessor in both engines."""
