"""Writers, their transactions, and their identities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Self, TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, IncompatibleError
from penstock.system.contract.messages import RawRecord

Appended: TypeAlias = Mapping[SystemStreamPartition, tuple[tuple[int, int], ...]]
"""The ranges `[start, end)` of the offsets that records got, ascending, by partition."""
Parts: TypeAlias = Mapping[SystemStreamPartition, Iterable[RawRecord]]
"""The records for each partition."""


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """The name and epoch of a writer, for systems that fence (`System.fences`).

    Example:
        >>> older, newer = WriterIdentity("sums-1", epoch=4), WriterIdentity("sums-1", epoch=5)
    """

    name: str
    """The same for every run of one job."""
    epoch: int
    """Once a larger one of this name was seen, the smaller ones are refused."""


@dataclass(frozen=True, slots=True, order=True)
class Progress:
    """The progress of publishing a writer's outbox in one partition: everything up to this chunk is published.

    Example:
        >>> Progress(slot=7, chunk=3) < Progress(slot=8, chunk=0)
        True
    """

    slot: int
    """The number of a record in the checkpoint log. It never falls."""
    chunk: int
    """The number of a chunk of that record, from 0."""

    def check_follows(self, last: Progress | None, ssp: SystemStreamPartition) -> None:
        """Check that this may be marked after the last one.

        Args:
            last: the last mark of the partition; None if there is none.
            ssp: the partition.

        Raises:
            IncompatibleError: it is not larger, so the messages that go with it are published already.
        """
        if last is not None and self <= last:
            raise IncompatibleError(
                f"chunk {self.chunk} of record {self.slot} is already published to `{ssp}`, which is at chunk "
                f"{last.chunk} of record {last.slot}; nothing was appended"
            )


class WriterMark(NamedTuple):
    """The marks of a writer's name in one partition, where a system keeps both together."""

    epoch: int
    """The largest epoch that has written; a smaller one must not."""
    progress: Progress | None


Marks: TypeAlias = Mapping[SystemStreamPartition, Progress]
"""The progress to keep, by partition."""


class WriterTransaction(ABC):
    """Records for several partitions. As a context manager it commits at the end, and aborts after an error.

    `SystemWriter.begin` makes one, and has an example.
    """

    @abstractmethod
    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> None:
        """Add records, behind those added to the partition before. They may be taken as late as in `commit`.

        Args:
            ssp: the partition.
            records: (timestamp in epoch milliseconds, key, value), taken one by one.

        Raises:
            FencedError: a larger epoch of this writer's name was seen; `commit` may be the one to find it out.
        """

    @abstractmethod
    def commit(self) -> None:
        """Make all records durable and readable, each partition's in one atomic step. If the system commits atomically
        (`System.commits_atomically`), all partitions share one step.

        It returns, or raises, only once nothing is under way. If there are several errors, it raises a permanent error
        in preference to a RetryableError. After an error each partition has all of its records or none.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop the added records, before a commit or after one that failed. The writer can begin again."""

    def appended(self) -> Appended:
        """The offsets of the transaction's records, and of no others, even if other writers append at the same time. To
        be called after `commit`. A partition without records is left out.

        Raises:
            IncompatibleError: the system cannot tell (`System.reports_appended`).
        """
        raise IncompatibleError("the system does not report the offsets of what was appended")

    def mark(self, ssp: SystemStreamPartition, progress: Progress) -> None:
        """Keep the progress of publishing in the same atomic step as the records for the partition: after `commit` both
        exist, or neither does. If a partition has several marks, the last one counts.

        Args:
            ssp: the partition; it needs no records.
            progress: the progress with this transaction. Each mark of a partition is larger than the last one.

        Raises:
            IncompatibleError: the mark is not larger than the last one of this writer's name, or the system does not
                keep it (`System.keeps_progress`). `commit` may be the one to find it out; nothing is written then.
            ConfigError: the writer has no name.
        """
        raise IncompatibleError(f"the system of `{ssp}` does not keep how far publishing is")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort()
            return
        try:
            self.commit()
        except BaseException:
            self.abort()
            raise


class AppendedAtCommit(WriterTransaction):
    """A transaction that sends nothing before its commit, which is one call.

    Example:
        >>> from penstock.api.ssp import SystemStreamPartition
        >>> with AppendedAtCommit(lambda parts: print([str(ssp) for ssp in parts])) as transaction:
        ...     transaction.append(SystemStreamPartition("m", "out", 1), [(0, b"key", b"value")])
        ['m.out.1']
    """

    def __init__(self, append: Callable[[Parts], Appended | None]) -> None:
        """
        Args:
            append: appends these records to each of these partitions, and keeps the promises of `commit`. It returns
                the result of `appended`, or None if the system cannot tell."""
        self._append = append
        self._appended: Appended | None = None
        self._parts: dict[SystemStreamPartition, list[Iterable[RawRecord]]] = {}

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> None:
        """Keep the records for the commit."""
        self._parts.setdefault(ssp, []).append(records)

    def commit(self) -> None:
        """Append everything."""
        parts, self._parts = self._parts, {}
        self._appended = self._append({ssp: chain.from_iterable(records) for ssp, records in parts.items()})

    def abort(self) -> None:
        """Forget everything."""
        self._parts.clear()

    def appended(self) -> Appended:
        """The result of the append."""
        return super().appended() if self._appended is None else self._appended


class MarkedAtCommit(AppendedAtCommit):
    """The same for a system that keeps progress in the step that appends.

    Example:
        >>> from penstock.api.ssp import SystemStreamPartition
        >>> out = SystemStreamPartition("m", "out", 1)
        >>> with MarkedAtCommit(WriterIdentity("sums-1", 4), lambda parts, marks: print(marks[out])) as transaction:
        ...     transaction.append(out, [(0, b"key", b"value")])
        ...     transaction.mark(out, Progress(slot=7, chunk=3))
        Progress(slot=7, chunk=3)
    """

    def __init__(self, identity: WriterIdentity | None, append: Callable[[Parts, Marks], Appended | None]) -> None:
        """
        Args:
            identity: the writer's. Without one, `mark` refuses.
            append: as for `AppendedAtCommit`; it also keeps these marks, each in the same step as the records for its
                partition. A partition with a mark alone is there without records."""
        super().__init__(self._append_marked)
        self._identity = identity
        self._append_all = append
        self._marks: dict[SystemStreamPartition, Progress] = {}

    def mark(self, ssp: SystemStreamPartition, progress: Progress) -> None:
        """Keep the mark for the commit."""
        check_may_mark(self._identity)
        progress.check_follows(self._marks.get(ssp), ssp)
        self._marks[ssp] = progress
        self._parts.setdefault(ssp, [])

    def abort(self) -> None:
        """Forget everything."""
        super().abort()
        self._marks.clear()

    def _append_marked(self, parts: Parts) -> Appended | None:
        marks, self._marks = self._marks, {}
        return self._append_all(parts, marks)


def check_may_mark(identity: WriterIdentity | None) -> WriterIdentity:
    """The identity of a writer that keeps progress, which a system keeps by the writer's name.

    Example:
        >>> check_may_mark(WriterIdentity("sums-1", epoch=4)).name
        'sums-1'

    Raises:
        ConfigError: there is none.
    """
    if identity is None:
        raise ConfigError("a writer without a name cannot keep how far publishing is; give it a `WriterIdentity`")
    return identity


class SystemWriter(ABC):
    """Appends. Used by one thread.

    Example:
        >>> from penstock.api.ssp import SystemStreamPartition
        >>> from penstock.system.memory import MemorySystem
        >>> system, ssp = MemorySystem("m"), SystemStreamPartition("m", "in", 0)
        >>> system.admin().create_stream("in", 1)
        True
        >>> writer = system.writer(None)
        >>> [writer.append(ssp, [(0, None, b"one"), (0, None, b"two")]), writer.append(ssp, [(0, None, b"three")])]
        [0, 2]
    """

    @abstractmethod
    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        """Append all records to the partition as one atomic, durable step; returns the first one's offset.

        They are taken one by one, so their source need not hold all of them. If it raises, nothing is appended.
        With no records it takes over from older epochs as any append does, and returns the upcoming offset.

        Args:
            ssp: the partition.
            records: (timestamp in epoch milliseconds, key, value).

        Raises:
            FencedError: the system fences (`System.fences`), and a larger epoch of this writer's name was seen; checked
                in the same transaction.
            ConfigError: a record has another form.
            NotFoundError: there is no such stream or partition.
        """

    def begin(self) -> WriterTransaction:
        """Begin to append to several partitions, those of a task's outputs. One transaction of a writer at a time.

        Example:
            >>> from penstock.api.ssp import SystemStreamPartition
            >>> from penstock.system.memory import MemorySystem
            >>> system = MemorySystem("m")
            >>> system.admin().create_stream("out", 2)
            True
            >>> with system.writer(None).begin() as transaction:
            ...     for partition in range(2):
            ...         transaction.append(SystemStreamPartition("m", "out", partition), [(0, b"key", b"value")])
            >>> [ends.upcoming for ends in system.admin().offsets("out").values()]
            [1, 1]
        """
        return AppendedAtCommit(self._append_one_by_one)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        """The last mark of this writer's name in each partition (`WriterTransaction.mark`); partitions without one are
        left out.

        No older epoch can mark anything any more once this returns.

        Args:
            ssps: the partitions.

        Raises:
            FencedError: a larger epoch of this writer's name was seen.
            IncompatibleError: the system does not keep it (`System.keeps_progress`).
            ConfigError: the writer has no name.
        """
        raise IncompatibleError("the system does not keep how far publishing is")

    def _append_one_by_one(self, records: Parts) -> None:
        for ssp in sorted(records):
            self.append(ssp, records[ssp])

    @abstractmethod
    def close(self) -> None:
        """Close connections and files. No call follows."""
