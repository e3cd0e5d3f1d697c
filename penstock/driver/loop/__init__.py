"""The run loop, its parts, and their assembly."""
