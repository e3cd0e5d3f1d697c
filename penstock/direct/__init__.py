"""The direct way of small batches: without a Spark job, through one process beside the driver.

Only the host of a run on Spark and the simulator may import it.
"""
