"""Writing to topics."""
