"""Guards that hold a run back or end it: a lost lease, failures, systems that are away, inputs that change."""
