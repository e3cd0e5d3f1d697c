"""Jobs inside a streaming query: Spark owns the offsets and the ids of batches, Penstock the state."""
