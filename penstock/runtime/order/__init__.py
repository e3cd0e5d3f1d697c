"""Messages that wait until the watermark has passed them, and then come in the order of their event times.

Found by name: only `admin` and `testing` may import them.
"""
