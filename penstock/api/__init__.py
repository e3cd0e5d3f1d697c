"""The vocabulary of applications: the values and base classes that users import."""
