"""Batches as Spark jobs. Only PySpark's side, `tables/spark.py` and the host's other packages may import it."""
