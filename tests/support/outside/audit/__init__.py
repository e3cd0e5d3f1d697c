"""A wing that another distribution brings: it counts the runs of batches in all containers, and the commits."""
