"""Versions of pushed tables: built, published, found and chosen."""
