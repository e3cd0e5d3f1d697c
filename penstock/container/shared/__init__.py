"""Resources that a container's tasks share in one epoch: object stores, folders, threads, metrics."""
