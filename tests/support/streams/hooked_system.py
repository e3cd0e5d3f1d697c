"""A system that calls a hook before each step of a writer, to fail there, or to end there as if it was killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import (
    Appended,
    Progress,
    RawRecord,
    System,
    SystemAdmin,
    SystemReader,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
)
from penstock.system.contract.messages import PartitionOffsets

_FLAGS = (
    "dense_offsets",
    "lag_unit",
    "fences",
    "compacts_on_request",
    "keeps_owners",
    "compacts_by_age",
    "retains",
    "ends_streams",
    "commits_atomically",
    "reports_appended",
    "keeps_progress",
    "readers_seek",
    "readers_share",
)
STEPS = ("progress", "begin", "append", "mark", "commit", "committed")


class HookedSystem(System):
    """Another system; `at` is called before the steps `progress`, `begin`, `append`, `mark` and `commit` of its
    writers, and, as `committed`, after a commit."""

    def __init__(self, inner: System, at: Callable[[str], None] = lambda _: None) -> None:
        self.name = inner.name
        self.inner = inner
        self.at = at
        for flag in _FLAGS:
            setattr(self, flag, getattr(inner, flag))

    def messages_in(self, ends: Iterable[PartitionOffsets]) -> int | None:
        return self.inner.messages_in(ends)

    def lag(self, position: int, upcoming: int) -> int:
        return self.inner.lag(position, upcoming)

    def admin(self) -> SystemAdmin:
        return self.inner.admin()

    def reader(self) -> SystemReader:
        return self.inner.reader()

    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        return _HookedWriter(self, self.inner.writer(identity))


class _HookedWriter(SystemWriter):
    def __init__(self, system: HookedSystem, inner: SystemWriter) -> None:
        self._system = system
        self._inner = inner

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        return self._inner.append(ssp, records)

    def begin(self) -> WriterTransaction:
        self._system.at("begin")
        return _HookedTransaction(self._system, self._inner.begin())

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        self._system.at("progress")
        return self._inner.progress(ssps)

    def close(self) -> None:
        self._inner.close()


class _HookedTransaction(WriterTransaction):
    def __init__(self, system: HookedSystem, inner: WriterTransaction) -> None:
        self._system = system
        self._inner = inner

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> None:
        self._system.at("append")
        self._inner.append(ssp, records)

    def mark(self, ssp: SystemStreamPartition, progress: Progress) -> None:
        self._system.at("mark")
        self._inner.mark(ssp, progress)

    def commit(self) -> None:
        self._system.at("commit")
        self._inner.commit()
        self._system.at("committed")

    def abort(self) -> None:
        self._inner.abort()

    def appended(self) -> Appended:
        return self._inner.appended()
