"""A stage of one task: its operators, its attempts, its source and its sink."""
