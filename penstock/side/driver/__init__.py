"""The driver's part of side inputs."""
