"""Standbys: copies of stores on other hosts, which follow the checkpoints."""
