"""Object stores: local files, services in the cloud, memory; signed and counted on request.

A package of the kernel: every room but `base` and `api` may import it.
"""
