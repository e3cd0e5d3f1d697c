"""A job and its folder: the keys of its objects, its identity, its lease, requests to it, and what it shows."""
