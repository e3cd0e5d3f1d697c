"""The container's part of pushed tables: versions are loaded, and read by attempts."""
