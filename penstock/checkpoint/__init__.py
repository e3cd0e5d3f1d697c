"""The checkpoint log: which epoch owns a job, and the record of every commit.

A package of the kernel: every room but `base` and `api` may import it.
"""
