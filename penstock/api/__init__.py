"""The vocabulary of applications: the values and base classes that users import from `penstock`.

Every room but `base` may import it.
"""
