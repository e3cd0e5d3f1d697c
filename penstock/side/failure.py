"""The failure of a fill, in the form that the driver gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import (
    KINDS,
    ContainerLostError,
    FailedMessage,
    PenstockError,
    RetryableError,
    UserCodeError,
)


@dataclass(frozen=True, slots=True)
class SideFailure:
    """The reason why side inputs no longer fill a store."""

    text: str
    kind: str = "PenstockError"
    failed: FailedMessage | None = None
    """The message at which the application's code failed; None if it did not fail."""

    def error(self, named: Callable[[FailedMessage], FailedMessage]) -> PenstockError:
        """The error that the run ends with. `named` adds the name of the message."""
        if self.failed is not None:
            return UserCodeError(named(self.failed))
        kind = KINDS.get(self.kind, PenstockError)
        if issubclass(kind, RetryableError) and kind is not ContainerLostError:
            kind = PenstockError  # it was tried again for long enough
        return kind(self.text)
