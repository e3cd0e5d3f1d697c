"""The driver's part of a drain: whether it is asked for, how far it is, and its end."""
