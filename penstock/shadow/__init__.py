"""Shadow: a job whose effects are held back, and never one whose output has a gap.

A wing: only `admin` and `testing` may import it.
"""
