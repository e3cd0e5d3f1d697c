"""A job on Spark, from its start to its end.

Only PySpark's side, `tables/spark.py` and the host's other packages may import it.
"""
