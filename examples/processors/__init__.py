"""A PySpark StatefulProcessor in both engines."""
