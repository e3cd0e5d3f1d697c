"""Where a run begins: the checks and decisions between an application with its configuration and a first batch.

A package of the kernel: every room but `base` and `api` may import it.
"""
