"""Containers on Spark's executors: they are started, called, and replaced when they are lost."""
