"""Tables of a SQL database as outputs: messages are upserts and deletes, exactly once."""
