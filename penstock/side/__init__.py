"""Stores that are filled from the outside: following side streams, and loading versions of pushed tables."""
