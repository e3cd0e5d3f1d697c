"""Stores that a process keeps at a checkpoint while no task works with them: those of standbys, and those that a task
leaves to the next epoch."""
