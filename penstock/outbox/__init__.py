"""Exactly-once output: messages that a commit makes durable, and that are published behind its record."""
