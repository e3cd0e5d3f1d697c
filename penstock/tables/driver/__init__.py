"""The driver's part of pushed tables: builds of versions, and which version a batch reads."""
