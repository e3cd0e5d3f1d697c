"""Stores, tables, state of the current key, and the side inputs that fill stores."""
