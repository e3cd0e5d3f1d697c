"""Running a stage of one task: messages through operators, until every source's trailer has come."""
