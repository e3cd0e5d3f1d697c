"""The files of a Spark state store's checkpoint."""
