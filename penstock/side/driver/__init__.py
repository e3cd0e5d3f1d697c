"""The driver's part of side inputs: waits until they are caught up, and reports their problems."""
