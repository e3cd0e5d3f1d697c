"""Folders of data files as streams: the system `files`."""
