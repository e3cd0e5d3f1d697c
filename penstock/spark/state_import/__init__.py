"""Reading the state of a Spark Structured Streaming query (RocksDB state store provider). Knows neither PySpark nor a
JVM: the files are read as Spark 4.3 writes them.

Only `admin` and PySpark's side may import it.
"""
