"""The failure of a fill, in the form that the driver gets."""

from __future__ import annotations

from dataclasses import replace

from penstock.runtime.context import OperatorFailedError
from penstock.side.fill.entries import MessageFailedError
from penstock.side.wing import SideFailure


def side_failure(error: BaseException) -> SideFailure:
    if isinstance(error, MessageFailedError):
        offset, _, key, *_ = error.message
        failed = OperatorFailedError("", error.cause).describe(error.ssp, offset, key)
        failed = replace(failed, store=error.part.spec.name)
        return SideFailure(str(failed), "UserCodeError", failed)
    return SideFailure(str(error) or type(error).__name__, type(error).__name__)
