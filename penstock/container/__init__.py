"""The container: a process that keeps the stores of its tasks from batch to batch."""
