"""Many keys, values or objects at once, as arrays. They know nothing of state, streams or operators."""
