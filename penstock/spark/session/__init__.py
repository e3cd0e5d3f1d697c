"""Spark itself: the session, its JVM, its settings and its executors.

Only PySpark's side, `tables/spark.py` and the host's other packages may import it.
"""
