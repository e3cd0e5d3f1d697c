"""The checkpoint log: which epoch owns a job, and the record of every commit."""
