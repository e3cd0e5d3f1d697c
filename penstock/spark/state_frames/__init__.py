"""The state of a job as DataFrames."""
