"""The driver's part of the outbox: which objects are to be published, and which can be deleted."""
