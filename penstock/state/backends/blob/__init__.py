"""The backend `blob`: a commit uploads the engine's files that are new by content, and an index of all.

Found by name: only `admin` and `testing` may import it.
"""
