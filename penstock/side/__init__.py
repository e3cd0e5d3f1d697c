"""Side inputs: streams that fill stores which the job only reads, in the container of the tasks that read them.

A wing: only `admin` and `testing` may import it.
"""
