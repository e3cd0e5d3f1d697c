"""The driver's part of standbys: tells them of checkpoints, and knows which are ready."""
