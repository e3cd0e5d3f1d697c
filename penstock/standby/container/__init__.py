"""The container's part of standbys."""
