"""Messages and state with schemas: Avro, Protobuf and JSON Schema, and the registries that keep schemas.

A wing: only `admin` and `testing` may import it.
"""
