"""Tables of a lake as outputs: Delta and Iceberg."""
