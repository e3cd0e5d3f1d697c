"""What the tasks of a container share in one epoch: object stores, folders, threads, metrics."""
