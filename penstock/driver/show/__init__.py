"""The outside view of a run: progress, metrics, notes in the log."""
