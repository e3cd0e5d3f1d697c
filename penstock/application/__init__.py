"""Applications as their authors build them: streams, operators, tasks.

A package of the kernel: every room but `base` and `api` may import it.
"""
