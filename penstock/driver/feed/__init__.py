"""Feeds: they choose what the run loop does next: a batch, nothing until a time, or the end."""
