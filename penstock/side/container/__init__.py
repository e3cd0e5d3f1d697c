"""The container's part of side inputs: they are filled, backed up, and read by attempts."""
