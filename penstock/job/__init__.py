"""A job and its folder: the keys of its objects, its identity, lease and audit log, requests to it, and its boards.

A package of the kernel: every room but `base` and `api` may import it.
"""
