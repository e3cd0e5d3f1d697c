"""The container: a process that keeps the stores of its tasks from batch to batch.

A package of the kernel: every room but `base` and `api` may import it. `driver` and the drivers' parts of wings may
not.
"""
