"""Messages on their way through a stage and between stages: in columns, in packets, to their outlets."""
