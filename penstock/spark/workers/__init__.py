"""Code of Spark's Python workers, and the data that is sent to them.

Only PySpark's side, `tables/spark.py` and the host's other packages may import it.
"""
