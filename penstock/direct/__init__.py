"""The direct way of small batches: without a Spark job, through one process beside the driver.

Only PySpark's side, `tables/spark.py` and the host's other packages may import it.
"""
