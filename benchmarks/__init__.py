"""Benchmarks: both sides in one go on one machine, ratios with the machine and the versions, JSON beside the table."""
