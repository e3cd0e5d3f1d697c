"""Tables of a lake as streams: Delta and Iceberg. Found by name: only `admin` and `testing` may import it."""
