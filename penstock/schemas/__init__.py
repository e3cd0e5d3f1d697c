"""Messages and state with schemas: Avro, Protobuf and JSON Schema, and the registries that keep schemas."""
