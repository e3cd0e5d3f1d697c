"""The driver: it decides which batch runs, when a commit begins, and what follows a failure."""
