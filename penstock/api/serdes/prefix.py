"""Prefixes as ranges of bytes."""


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The least bytes greater than all that begin with the prefix; None if there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
