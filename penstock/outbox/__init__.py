"""Exactly-once output: messages that a commit makes durable and that are published after its record."""
