"""What the operator that joins two streams keeps in its store."""
