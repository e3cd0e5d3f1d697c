"""Batches: their portions, the positions after them, and the event times that follow. Pure."""
