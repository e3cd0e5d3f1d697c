"""Running a stage of one task: messages through operators, until everything from every source has come.

A package of the kernel: every room but `base` and `api` may import it.
"""
