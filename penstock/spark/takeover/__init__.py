"""Taking over the state of a query that ran PySpark's transformWithState."""
