"""The driver's part of pushed tables: builds versions, and chooses the version that a batch reads."""
