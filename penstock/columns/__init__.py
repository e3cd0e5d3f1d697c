"""Keys and values by column: arrays of bytes, an index of keys, and rows of a schema as bytes."""
