"""Where a run begins: the checks and decisions between an application with its configuration and a first batch."""
