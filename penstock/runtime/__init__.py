"""Running a stage of one task: messages through operators, until everything from every source has come."""
