"""Containers on Spark's executors: they are started, called, and replaced when they are lost.

Only PySpark's side, `tables/spark.py` and the host's other packages may import it.
"""
