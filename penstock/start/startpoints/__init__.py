"""Startpoints (SEP-18): requests for positions, and what a start makes of them."""
