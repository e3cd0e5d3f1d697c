"""The driver's part of a drain: finds requests, counts progress, and ends the run."""
