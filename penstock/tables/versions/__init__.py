"""Versions of pushed tables: how one is built, published, found and chosen."""
