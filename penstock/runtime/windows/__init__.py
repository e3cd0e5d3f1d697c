"""The windows of a window operator: their content, and when they fire.

Found by name: only `admin` and `testing` may import them.
"""
