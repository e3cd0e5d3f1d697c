"""The driver's part of standbys."""
