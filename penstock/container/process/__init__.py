"""The process of a container: its launch, its ports, its server, and the handlers of calls."""
