"""The state of a checkpoint for another number of tasks: every entry comes to the task that owns its key.

A wing: only `admin`, `testing` and PySpark's side may import it.
"""
