"""Standbys: copies of stores on other hosts, which follow the checkpoints.

A wing: only `admin` and `testing` may import it.
"""
