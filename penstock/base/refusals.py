"""Several reasons why something is refused, said at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from penstock.errors import ConfigError, IncompatibleError, NotFoundError, PenstockError

REFUSALS = (ConfigError, IncompatibleError, NotFoundError)
"""The kinds of errors that refuse: the caller has to change something."""


class Refusals:
    """Collects refusals of steps that do not need each other.

    Example:
        >>> refusals = Refusals("the start is refused")
        >>> with refusals.noted():
        ...     raise ConfigError("no input")
        >>> with refusals.noted():
        ...     raise ConfigError("no output")
        >>> refusals.check()
        Traceback (most recent call last):
        ...
        penstock.errors.ConfigError: the start is refused for 2 reasons:
          - no input
          - no output
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: list[PenstockError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep a refusal that the block raises. Other errors pass through."""
        try:
            yield
        except REFUSALS as error:
            self.note(error)

    def note(self, error: PenstockError) -> None:
        """Keep a refusal; of one that was made of several, each of them. The same text counts once."""
        known = {str(each) for each in self._found}
        self._found += [each for each in (error.refusals or (error,)) if str(each) not in known]

    def note_all(self, errors: Iterable[PenstockError]) -> None:
        for error in errors:
            self.note(error)

    def check(self) -> None:
        """Raise what was kept: a single refusal as it is, several as one error of the first one's kind."""
        if not self._found:
            return
        if len(self._found) == 1:
            raise self._found[0]
        first = self._found[0]
        kind = next(kind for kind in REFUSALS if isinstance(first, kind))
        lines = "".join(f"\n  - {each}" for each in self._found)
        whole = kind(f"{self._what} for {len(self._found)} reasons:{lines}")
        whole.refusals = tuple(self._found)
        raise whole from first
