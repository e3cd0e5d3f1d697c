"""A job on Spark, from its start to its end."""
