"""The options of a system `kafka`."""
