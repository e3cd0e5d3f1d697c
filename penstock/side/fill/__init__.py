"""Filling side stores from their streams."""
