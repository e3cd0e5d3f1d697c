"""Code of Spark's Python workers, and the data that is sent to them."""
