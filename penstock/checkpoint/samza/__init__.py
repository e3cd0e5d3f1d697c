"""Samza's checkpoint topic: its keys and messages, and checkpoints that are adopted from it."""
