"""Batches: their portions, the positions after them, and the event times that follow. Pure.

A package of the kernel: every room but `base` and `api` may import it.
"""
