"""The container's part of the outbox: objects are made by commits, and published chunk by chunk."""
