"""What a run shows of itself: progress, metrics, notes in the log."""
