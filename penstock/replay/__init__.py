"""Replay: each checkpoint says which batches a run has made since the one before, so that they can be made again.

A wing: only `admin` and `testing` may import it.
"""
