"""The messages that the join of two streams keeps in its store."""
