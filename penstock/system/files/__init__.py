"""Folders of data files as streams: the system `files`. Found by name: only `admin` and `testing` may import it."""
