"""Topics that Penstock keeps for itself: owners, fences, producers, progress."""
