"""The host of a process: the machine, folders that go with a process, logs, sockets.

A package of the kernel: every room but `base` and `api` may import it.
"""
