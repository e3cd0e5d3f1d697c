"""State of tasks: engines, stores, and the backends that back them up."""
