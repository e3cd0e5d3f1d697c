"""The contract between driver, Spark's workers and containers: values, calls, and how they prove who they are.

A package of the kernel: every room but `base` and `api` may import it.
"""
