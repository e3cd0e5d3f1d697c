"""The driver: it decides which batch runs, when a commit begins, and what follows a failure.

A package of the kernel: every room but `base` and `api` may import it.
"""
