"""The keyed count in other Python engines: scripts that need nothing of Penstock, each with its own environment."""
