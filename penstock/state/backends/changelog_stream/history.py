"""Reads ranges of changelogs, exactly or not at all, on either kind of system.

A system that compacts on request knows what is gone. One that compacts by the age of records, as Kafka does, drops a
record for a newer one of its key once that newer one is older than the stream's lag. A range is therefore whole as long
as everything behind its end is younger: a record inside the range then went only for a later record inside it. This is
checked again after the range was read. If nothing was ever appended behind the range, its age does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import Retry, retry
from penstock.errors import NotFoundError, RetryableError
from penstock.system.base import OffsetRange, RawMessage, System, SystemAdmin

_READ_MESSAGES = 5_000
_END_OF_TRANSACTION = 1
"""The number of offsets a system may use behind a last record, for the end of the transaction that wrote it. Every
record but the last of a transaction is followed by another with the same timestamp."""
_SHOWN = Retry(pause_s=0.02, longest_pause_s=0.5, within_s=10.0)
"""Committed records become readable within this time."""


class ChangelogReader:
    """Reads ranges of the changelogs of one system. Used by one thread at a time."""

    def __init__(self, system: System) -> None:
        self._on_request = system.compacts_on_request
        self._system = system
        self._reader = system.reader()
        self._opened: SystemAdmin | None = None

    def read(self, offsets: OffsetRange) -> Iterator[list[RawMessage]]:
        """The records of a range that compaction has kept. In an empty store, they give the same as the whole range.

        Raises:
            NotFoundError: the range, or the stream, does not exist, or may no longer exist as a whole.
            RetryableError: the read failed for now; the records read so far are of no use.
        """
        if self._on_request:
            yield from self._reader.read_compacted(offsets, _READ_MESSAGES)
        elif len(offsets):
            yield from self._read_whole(offsets, offsets.end)

    def read_every(self, offsets: OffsetRange) -> Iterator[list[RawMessage]]:
        """Every record of a range. Raises as `read`, also if one was dropped for another one in the range."""
        if self._on_request:
            yield from self._reader.read(offsets, _READ_MESSAGES)
        elif len(offsets):
            yield from self._read_whole(offsets, offsets.start)

    def keys(self, ssp: SystemStreamPartition) -> set[bytes]:
        """The keys that have a value, if the partition is read from its beginning. Messages without a key are
        ignored."""
        ends = self._admin.offsets(ssp.stream)[ssp.partition]
        found: set[bytes] = set()
        for messages in self._reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), _READ_MESSAGES):
            for _, _, key, value, *_ in messages:
                if value is None:
                    found.discard(key or b"")
                elif key is not None:
                    found.add(key)
        return found

    def identity(self, ssp: SystemStreamPartition) -> str | None:
        """The id that distinguishes the stream from others of its name; None if the system has none."""
        return self._admin.stream_identity(ssp.stream)

    def close(self) -> None:
        self._reader.close()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _admin(self) -> SystemAdmin:
        if self._opened is None:
            self._opened = self._system.admin()
        return self._opened

    def _read_whole(self, offsets: OffsetRange, untouched_from: int) -> Iterator[list[RawMessage]]:
        self._wait_for(offsets)
        deletes_stay_ms = self._check(offsets, untouched_from)
        began = time.monotonic()
        yield from self._reader.read(offsets, _READ_MESSAGES)
        self._check(offsets, untouched_from)
        # A delete may go once it has stayed for so long; the value that it deleted was perhaps read before that.
        if (time.monotonic() - began) * 2000 > deletes_stay_ms:
            raise NotFoundError(
                f"{_partition(offsets.ssp)}: reading took longer than half of the stream's `delete.retention.ms` = "
                f"{deletes_stay_ms}, so a delete may have been removed before it was read. Raise this setting"
            )

    def _wait_for(self, offsets: OffsetRange) -> None:
        """Wait until the end of the range, which was committed, can be read. If that fails, reading reports it."""

        def look() -> None:
            if self._admin.offsets(offsets.ssp.stream)[offsets.ssp.partition].upcoming < offsets.end:
                raise _LateError(f"{_partition(offsets.ssp)} has nothing at offset {offsets.end - 1} yet")

        try:
            retry(look, _SHOWN)
        except _LateError:
            return

    def _check(self, offsets: OffsetRange, untouched_from: int) -> int:
        """The time that deletes stay, in milliseconds. Raises NotFoundError unless the range is whole."""
        found = self._admin.compaction(offsets.ssp.stream)
        if found.untouched_from[offsets.ssp.partition] > untouched_from + _END_OF_TRANSACTION:
            raise NotFoundError(
                f"{_partition(offsets.ssp)}: the offsets {offsets.start} to {offsets.end - 1} may no longer be whole. "
                f"Records behind offset {untouched_from - 1} are older than the stream's `min.compaction.lag.ms` = "
                f"{found.lag_ms}, so older ones of their keys may be gone. Use a newer checkpoint, or restore "
                "from another backend (`stores.<name>.restore.factories`). A store that `blob` backs up as well can be "
                "restored from every retained checkpoint"
            )
        return found.deletes_stay_ms


class _LateError(RetryableError):
    """The end of a range cannot be read yet."""


def _partition(ssp: SystemStreamPartition) -> str:
    return f"the changelog `{ssp.system_stream}` partition {ssp.partition}"
