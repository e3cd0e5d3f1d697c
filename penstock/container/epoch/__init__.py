"""A container in one epoch: it restores its tasks, runs their attempts, and commits them."""
