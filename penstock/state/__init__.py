"""State of tasks: engines, stores, and the backends that back them up.

A package of the kernel: every room but `base` and `api` may import it.
"""
