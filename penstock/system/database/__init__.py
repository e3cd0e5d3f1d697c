"""Tables of a SQL database as outputs: messages are upserts and deletes, exactly once.

Found by name: only `admin` and `testing` may import it.
"""
