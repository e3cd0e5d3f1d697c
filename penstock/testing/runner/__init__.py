"""The parts of `penstock.testing.TestRunner`."""
