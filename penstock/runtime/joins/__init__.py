"""The messages that the join of two streams keeps in its store.

Found by name: only `admin` and `testing` may import them.
"""
