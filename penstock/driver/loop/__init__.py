"""The run loop, its parts, and how they are put together."""
