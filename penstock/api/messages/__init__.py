"""Messages as applications see them."""
