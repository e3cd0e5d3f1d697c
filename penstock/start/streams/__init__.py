"""The streams of a job at its start: inputs and their tasks, identities, durable streams, debts to outputs."""
