"""The versions of a task's checkpoint (SEP-28): their values, their markers, and the table of them."""
