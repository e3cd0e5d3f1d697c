"""Side stores on a host: entries and positions, in folders that outlive a process."""
