"""The driver's part of the outbox: publishes objects after their record, then deletes them."""
