"""The way out to an exactly-once output that refuses some records.

A refused record fails in the operator that made it, like one that is not serialised. Once it was in a checkpoint, no
start could publish it, and each would end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.api.messages.headers import headers_size
from penstock.errors import ConfigError
from penstock.graph.serde_failures import SerdePlace
from penstock.graph.topology import Channel
from penstock.runtime.context import OperatorFailedError, Position, failure_in
from penstock.runtime.messages.columns import Push, Raw
from penstock.runtime.messages.outlet import Outlet
from penstock.system.contract.limits import RecordLimits


class LimitedOutlet(Outlet):
    """An outlet that takes no record which its stream refuses."""

    def __init__(self, channel: Channel, position: Position, place: SerdePlace, limits: RecordLimits) -> None:
        self._limits = limits
        self._position = position
        super().__init__(channel, position, place)

    def _make_push(self, position: Position) -> Push:
        return self._checking(super()._make_push(position))

    def _make_push_raw(self, position: Position) -> Push:
        return self._checking(super()._make_push_raw(position))

    def _checking(self, push: Push) -> Push:
        keys, values, refused, position = self.keys, self.values, self._limits.refused, self._position

        def checked(key: Any, value: Any) -> None:
            push(key, value)
            if (reason := refused(keys[-1], values[-1], self._headers_bytes(position.row))) is not None:
                self.truncate(len(keys) - 1)
                raise self._failure(reason)

        return checked

    def accept_raw(self, keys: Raw, values: Raw, rows: Sequence[int]) -> None:
        least = self._limits.least_bytes
        total = sum(len(part or b"") for column in (keys, values) for part in column)
        is_small = least is None or total + sum(map(len, self._position.page.packed_headers.values())) <= least
        if not is_small or (self._limits.needs_key and None in keys):
            for key, value, row in zip(keys, values, rows, strict=True):
                if (reason := self._limits.refused(key, value, self._headers_bytes(row))) is not None:
                    self._position.row = row
                    raise self._failure(reason)
        super().accept_raw(keys, values, rows)

    def _headers_bytes(self, row: int) -> int:
        page = self._position.page
        return headers_size(page.headers(row)) if row in page.packed_headers else 0

    def _failure(self, reason: str) -> OperatorFailedError:
        remedy = self._limits.remedy and f". {self._limits.remedy}"
        return failure_in(
            self.channel.source,
            ConfigError(
                f"the output `{self.channel.output}` refuses a message: {reason} (by its settings when the run "
                f"started). It was not sent, and is in no checkpoint{remedy}"
            ),
        )
