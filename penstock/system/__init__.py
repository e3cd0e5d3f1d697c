"""Systems: where streams are read and written.

A package of the kernel: every room but `base` and `api` may import it. A system of a user's own imports
`penstock.system.base`.
"""
