"""Where a writer of Avro puts values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias


class Output(bytearray):
    """The bytes of a message, and its budget."""

    __slots__ = ("empty", "levels", "tries")

    def __init__(self, head: bytes) -> None:
        super().__init__(head)
        self.levels = 0
        """Records that are being written, each in another one of its kind."""
        self.empty = 0
        """Values without bytes so far."""
        self.tries = 0
        """Branches of unions that did not take a value at the second look."""


Put: TypeAlias = Callable[[Any, Output], None]
"""Appends a value. Raises MisfitError."""
