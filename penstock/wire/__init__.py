"""The contract between driver, Spark's workers and containers: values, calls, and how they prove who they are."""
