"""Drain: everything that waits in a pipeline is brought to its end before an incompatible change."""
