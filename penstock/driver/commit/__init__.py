"""Commits, from the containers' changes to a record in the checkpoint log, and the garbage behind them."""
