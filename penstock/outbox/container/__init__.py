"""The container's part of the outbox: commits write objects, which are published chunk by chunk."""
