"""Spark itself: the session, its JVM, its settings and its executors."""
