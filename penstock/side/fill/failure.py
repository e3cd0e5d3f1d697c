"""How the filling of a store fails, as the driver gets to know it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import (
    KINDS,
    ContainerLostError,
    FailedMessage,
    PenstockError,
    RetryableError,
    UserCodeError,
)
from penstock.runtime.context import OperatorFailedError
from penstock.side.fill.entries import MessageFailedError


@dataclass(frozen=True, slots=True)
class SideFailure:
    """Why side inputs do not fill a store."""

    text: str
    kind: str = "PenstockError"
    failed: FailedMessage | None = None
    """The message at which the application failed; None if it did not."""

    def error(self) -> PenstockError:
        """What the run ends with."""
        if self.failed is not None:
            return UserCodeError(self.failed)
        kind = KINDS.get(self.kind, PenstockError)
        if issubclass(kind, RetryableError) and kind is not ContainerLostError:
            kind = PenstockError  # it was tried again for long enough
        return kind(self.text)


def side_failure(error: BaseException) -> SideFailure:
    """The failure that an error is."""
    if isinstance(error, MessageFailedError):
        offset, _, key, _ = error.message
        failed = OperatorFailedError("", error.cause).describe(error.ssp, offset, key)
        failed = replace(failed, store=error.part.spec.name)
        return SideFailure(str(failed), "UserCodeError", failed)
    return SideFailure(str(error) or type(error).__name__, type(error).__name__)
