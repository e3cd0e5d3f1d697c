"""Commits: they collect the containers' changes in a record of the checkpoint log, and delete the garbage after it."""
