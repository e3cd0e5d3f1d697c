"""Rows of a schema by column: as JSON, as bytes, and folded."""
