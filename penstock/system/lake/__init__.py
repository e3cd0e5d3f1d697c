"""Tables of a lake as streams: Delta and Iceberg."""
