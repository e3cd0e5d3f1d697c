"""Deploy: a job that has handed over to another one does not start again, unless it is brought back.

A wing: only `admin` and `testing` may import it.
"""
