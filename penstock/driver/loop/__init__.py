"""A run: its parts, put together, and the loop that runs them."""
