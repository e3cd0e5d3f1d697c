"""Batches as Spark jobs."""
