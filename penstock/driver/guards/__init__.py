"""What holds a run back or ends it: a lost lease, failures, systems that are away, inputs that change."""
