"""An application as a graph of operators: their specs, the checks of declarations, and the cut into stages.

A package of the kernel: every room but `base` and `api` may import it.
"""
