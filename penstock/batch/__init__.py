"""Batches: what one reads, what it has read, and the event times that follow. Pure."""
