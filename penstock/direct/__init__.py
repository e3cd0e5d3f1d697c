"""The direct way of small batches: without a Spark job, through one process beside the driver."""
