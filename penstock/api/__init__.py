"""The vocabulary of applications: what users import, as values and base classes."""
