"""The error for a value that does not fit Avro, with its place."""

from __future__ import annotations

from typing import Any

_SHOWN = 60
"""Characters of a value in an error."""


class MisfitError(Exception):
    """Gets its place from the records, arrays and maps that it passes on its way out."""

    def __init__(self, reason: str, kind: type[Exception] = ValueError) -> None:
        super().__init__(reason)
        self._kind = kind
        self._place = ""

    @classmethod
    def of(cls, error: Exception) -> MisfitError:
        """The same for any error of reading."""
        if isinstance(error, MisfitError):
            return error
        if isinstance(error, IndexError):  # of the bytes: they are read without a look at their end
            return cls("the bytes end before the message does", EOFError)
        kind = type(error) if isinstance(error, EOFError | MemoryError) else ValueError
        return cls(str(error) or type(error).__name__, kind)

    def inside(self, part: str) -> MisfitError:
        """The error as it is seen from the outside of a part: `.name` or `[]`."""
        self._place = part + self._place
        return self

    def error(self) -> Exception:
        """The error for users."""
        place = self._place.lstrip(".")
        if len(place) > _SHOWN:
            place = f"...{place[-_SHOWN:].lstrip('.')}"
        return self._kind(f"`{place}`: {self}" if place else str(self))


def wrong(value: Any, wanted: str) -> MisfitError:
    """The error for a value of another type."""
    return MisfitError(f"{shown(value)} is no {wanted}", TypeError)


def shown(value: Any) -> str:
    """A value for an error."""
    text = repr(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return text if value is None or isinstance(value, int | float | str | bytes) else f"{text} ({type(value).__name__})"
