"""Metrics: plain values, registries of them, snapshots that merge, and exporters. Every package may import them."""
