"""Exactly-once output: messages that a commit makes durable and that are published after its record.

A wing: only `admin`, `testing` and PySpark's side may import it.
"""
