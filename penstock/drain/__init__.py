"""Drain: a run processes everything that is in flight, and ends, before an incompatible change of its program.

A wing: only `admin` and `testing` may import it.
"""
