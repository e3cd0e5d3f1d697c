"""The backend `changelog-stream`: a commit appends net changes to a compacted stream.

Found by name: only `admin` and `testing` may import it.
"""
