"""The contract of every system, as tests that each system's own test class inherits.

```
class TestMySystem(SystemContract):
    @pytest.fixture
    def system(self) -> System:
        return MySystem(...)
```

Most of its parts are in `penstock.testing.contracts`; that of owners of streams, and of compaction on request, is here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, FencedError, IncompatibleError, NotFoundError, RetryableError
from penstock.system.base import OffsetRange, PartitionOffsets, RawRecord, System, SystemAdmin, WriterIdentity
from penstock.testing.contracts import (
    COMPACTOR,
    STREAM,
    SystemRoom,
    append,
    append_all,
    messages,
    read,
    read_all,
    read_compacted,
    records,
    ssp,
)
from penstock.testing.contracts.reading import DenseOffsetsContract, ReadingContract
from penstock.testing.contracts.streams import EndingContract, StreamRetentionContract, StreamsContract
from penstock.testing.contracts.writers import CommitContract, FencingContract, ProgressContract


class CompactionContract(SystemRoom):
    """For systems with `compacts_on_request`; the others say that they cannot."""

    def test_a_stream_has_the_first_owner_that_is_named(self, system: System, admin: SystemAdmin) -> None:
        if not system.keeps_owners:
            assert not system.compacts_on_request, "a system that compacts on request keeps owners"
            pytest.skip(f"{type(system).__name__} keeps no owners")
        admin.create_stream(STREAM, 2)
        admin.create_stream("others", 1)
        assert admin.owner(STREAM) is None
        assert admin.own(STREAM, "one") == "one"
        assert admin.own(STREAM, "two") == "one"
        assert (admin.owner(STREAM), admin.owner("others")) == ("one", None)
        assert admin.owners() == {STREAM: "one"}
        again = system.admin()
        assert (again.own(STREAM, "two"), again.owner(STREAM)) == ("one", "one")
        again.close()
        for look in (admin.owner, lambda stream: admin.own(stream, "one")):
            with pytest.raises(NotFoundError):
                look("nowhere")
        admin.delete_stream(STREAM)
        admin.create_stream(STREAM, 2)
        assert (admin.owner(STREAM), admin.owners()) == (None, {})

    @pytest.fixture
    def log(self, dense: None, system: System, admin: SystemAdmin) -> SystemStreamPartition:
        """An empty partition, where the system compacts on request."""
        if not system.compacts_on_request:
            pytest.skip(f"{type(system).__name__} does not compact on request")
        admin.create_stream(STREAM, 2)
        return ssp(system, 1)

    def test_a_system_that_does_not_compact_says_so(self, system: System, admin: SystemAdmin) -> None:
        if system.compacts_on_request:
            pytest.skip(f"{type(system).__name__} compacts on request")
        offsets = OffsetRange(ssp(system, 0), 0, 0)
        with pytest.raises(IncompatibleError):
            admin.compact(offsets, COMPACTOR)
        with pytest.raises(IncompatibleError):
            system.reader().read_compacted(offsets, 10)

    def test_only_the_newest_of_every_key_stays(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        values = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"", b"1"), (b"a", b"3"), (b"b", b"2"), (b"", b"")]
        append(system, log, [(i, *each) for i, each in enumerate(values)])
        assert admin.compact(OffsetRange(log, 0, 4), COMPACTOR) == 1
        assert [m[0] for m in read_compacted(system, log, 0, 7)] == [1, 2, 3, 4, 5, 6]
        assert admin.compact(OffsetRange(log, 0, 7), COMPACTOR) == 3
        assert read_compacted(system, log, 0, 7) == [(4, 4, b"a", b"3"), (5, 5, b"b", b"2"), (6, 6, b"", b"")]
        assert admin.offsets(STREAM) == {0: PartitionOffsets(0, 0), 1: PartitionOffsets(4, 7)}
        assert append(system, log, records(7, 1)) == 7

    def test_deletes_go_with_what_they_delete(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        values = [(b"a", b"1"), (b"a", None), (b"never", None), (b"b", None), (b"b", b"2"), (b"c", b"1"), (b"c", None)]
        append(system, log, [(i, *each) for i, each in enumerate(values)])
        assert admin.compact(OffsetRange(log, 0, 6), COMPACTOR) == 4
        assert read_compacted(system, log, 0, 6) == [(4, 4, b"b", b"2"), (5, 5, b"c", b"1")]
        assert admin.compact(OffsetRange(log, 0, 7), COMPACTOR) == 2
        assert read_compacted(system, log, 0, 7) == [(4, 4, b"b", b"2")]
        append(system, log, [(7, b"b", None)])
        assert admin.compact(OffsetRange(log, 0, 8), COMPACTOR) == 2
        assert read_compacted(system, log, 0, 8) == []
        assert admin.offsets(STREAM)[1] == PartitionOffsets(8, 8)
        assert append(system, log, records(8, 1)) == 8

    def test_a_partition_is_complete_from_where_it_was_compacted_to(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        """Who read up to 3 misses the deletion at 3. A dry run compacts nothing."""
        values = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None), (b"a", b"3"), (b"c", b"1")]
        append(system, log, [(i, *each) for i, each in enumerate(values)])
        admin.compact(OffsetRange(log, 0, 5), COMPACTOR, dry_run=True)
        assert admin.complete_from(STREAM) == {0: 0, 1: 0}
        admin.compact(OffsetRange(log, 0, 5), COMPACTOR)
        assert admin.complete_from(STREAM) == {0: 0, 1: 5}
        admin.compact(OffsetRange(log, 6, 6), COMPACTOR)
        assert admin.complete_from(STREAM) == {0: 0, 1: 6}

    def test_records_without_a_key_stay(self, system: System, admin: SystemAdmin, log: SystemStreamPartition) -> None:
        append(system, log, [(0, None, b"1"), (1, None, None), (2, b"k", b"1"), (3, b"k", b"2")])
        assert admin.compact(OffsetRange(log, 0, 4), COMPACTOR) == 1
        assert [message[0] for message in read_compacted(system, log, 0, 4)] == [0, 1, 3]

    def test_what_is_before_the_range_goes(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        append(system, log, [*records(0, 4), (4, b"key-0", b"new"), (5, None, None)])
        assert admin.compact(OffsetRange(log, 3, 3), COMPACTOR) == 3
        assert admin.offsets(STREAM)[1] == PartitionOffsets(3, 6)
        assert admin.compact(OffsetRange(log, 4, 6), COMPACTOR) == 1
        assert read_compacted(system, log, 4, 6) == [(4, 4, b"key-0", b"new"), (5, 5, None, None)]
        with pytest.raises(NotFoundError, match=rf"`{system.name}\.{STREAM}` partition 1: .*offset 3 .*before 4"):
            read_compacted(system, log, 3, 6)
        with pytest.raises(NotFoundError, match=r"\[3, 6\) cannot be compacted: the partition holds \[4, 6\)"):
            admin.compact(OffsetRange(log, 3, 6), COMPACTOR)
        assert admin.compact(OffsetRange(log, 6, 6), COMPACTOR) == 2
        assert admin.offsets(STREAM)[1] == PartitionOffsets(6, 6)

    def test_another_partition_is_not_compacted(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        for partition in (0, 1):
            append(system, ssp(system, partition), [(0, b"k", b"1"), (1, b"k", b"2")])
        assert admin.compact(OffsetRange(log, 0, 2), COMPACTOR) == 1
        assert [message[0] for message in read(system, ssp(system, 0), 0, 2)] == [0, 1]

    def test_a_plain_read_does_not_skip_what_was_compacted(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        append(system, log, [(0, b"a", b"1"), (1, b"k", b"1"), (2, b"k", b"2")])
        admin.compact(OffsetRange(log, 0, 3), COMPACTOR)
        with pytest.raises(NotFoundError, match="expected offset 1 "):
            read(system, log, 0, 3)

    @pytest.mark.parametrize(("start", "end"), [(0, 6), (6, 6), (9, 12)], ids=str)
    def test_nothing_is_compacted_or_read_that_is_not_there(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition, start: int, end: int
    ) -> None:
        append(system, log, records(0, 5))
        with pytest.raises(NotFoundError, match=f"partition 1: .*{end}"):
            admin.compact(OffsetRange(log, start, end), COMPACTOR)
        if start < end:
            with pytest.raises(NotFoundError, match="upcoming one is 5"):
                read_compacted(system, log, start, end)
        assert read(system, log, 0, 5) == messages(0, 5)

    def test_a_range_that_ends_inside_what_was_compacted(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        """The content of the range is no longer known: some of it went for newer records behind its end."""
        append(system, log, [(i, b"k", b"%d" % i) for i in range(6)])
        admin.compact(OffsetRange(log, 0, 4), COMPACTOR)
        for end in (1, 3):
            with pytest.raises(NotFoundError, match=rf"\[0, {end}\) can no longer be distinguished.* before 4 "):
                read_compacted(system, log, 0, end)
        assert [message[0] for message in read_compacted(system, log, 0, 4)] == [3]
        assert [message[0] for message in read_compacted(system, log, 2, 5)] == [3, 4]
        assert read_compacted(system, log, 1, 1) == []
        admin.compact(OffsetRange(log, 0, 2), COMPACTOR)  # less than before: nothing to do, and nothing forgotten
        with pytest.raises(NotFoundError):
            read_compacted(system, log, 0, 3)

    def test_a_compaction_during_a_read(self, system: System, admin: SystemAdmin, log: SystemStreamPartition) -> None:
        """Else the delete at 3 would be gone when its turn came, and the key that was read at 0 would be back."""
        append(system, log, [(0, b"k", b"1"), *records(1, 2), (3, b"k", None)])
        chunks = system.reader().read_compacted(OffsetRange(log, 0, 4), 2)
        next(chunks)
        admin.compact(OffsetRange(log, 0, 4), COMPACTOR)
        with pytest.raises(RetryableError, match="was compacted while it was read"):
            list(chunks)
        chunks = system.reader().read_compacted(OffsetRange(log, 0, 4), 1)
        next(chunks)
        append(system, log, records(4, 1))
        assert [message[0] for chunk in chunks for message in chunk] == [2]

    def test_chunks_of_a_compacted_range(self, system: System, admin: SystemAdmin, log: SystemStreamPartition) -> None:
        append(system, log, [(i, b"%d" % (i % 7), b"v") for i in range(30)])
        admin.compact(OffsetRange(log, 0, 20), COMPACTOR)
        chunks = list(system.reader().read_compacted(OffsetRange(log, 0, 28), 6))
        assert [[message[0] for message in chunk] for chunk in chunks] == [
            [13, 14, 15, 16, 17, 18],
            [19, 20, 21, 22, 23, 24],
            [25, 26, 27],
        ]
        assert list(system.reader().read_compacted(OffsetRange(log, 4, 4), 6)) == []
        for start, end, chunk in ((3, 2, 10), (0, 2, 0)):
            with pytest.raises(ConfigError):
                system.reader().read_compacted(OffsetRange(log, start, end), chunk)

    def test_a_fenced_writer_does_not_compact(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        append(system, log, [(0, b"k", b"1"), (1, b"k", b"2"), (2, b"k", b"3")])
        admin.fence(STREAM, WriterIdentity("compactor", 2))
        with pytest.raises(FencedError, match="epoch 2 has taken over"):
            admin.compact(OffsetRange(log, 0, 3), COMPACTOR)
        assert len(read(system, log, 0, 3)) == 3
        assert admin.compact(OffsetRange(log, 0, 2), WriterIdentity("compactor", 3)) == 1
        with pytest.raises(FencedError):
            system.writer(WriterIdentity("compactor", 2)).append(log, [])

    def test_a_dry_run_only_counts(self, system: System, admin: SystemAdmin, log: SystemStreamPartition) -> None:
        append(system, log, [(0, b"k", b"1"), (1, b"k", b"2"), (2, b"k", b"3")])
        admin.fence(STREAM, WriterIdentity("compactor", 2))
        for _ in range(2):
            assert admin.compact(OffsetRange(log, 1, 3), COMPACTOR, dry_run=True) == 2
        assert len(read_compacted(system, log, 0, 3)) == 3

    def test_a_compaction_waits_until_enough_is_new(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        def compact(start: int, end: int) -> int:
            return admin.compact(OffsetRange(log, start, end), COMPACTOR, min_dirty_ratio=0.5)

        append(system, log, [(i, b"%d" % (i % 10), b"v") for i in range(40)])
        assert compact(0, 10) == 0
        assert compact(0, 19) == 0
        assert compact(0, 20) == 10
        assert compact(0, 20) == compact(0, 29) == 0
        assert compact(0, 30) == 10
        assert compact(25, 30) == 5  # what is before the range never waits
        assert admin.compact(OffsetRange(log, 25, 31), COMPACTOR) == 0

    def test_random_compactions_change_no_result(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        """After any schedule, a range says what it always said, or is refused; those a compaction kept are not."""
        for seed in range(20):
            rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
            base = admin.offsets(STREAM)[1].upcoming
            written: list[RawRecord] = []
            start = end = base
            for _ in range(rng.randrange(1, 6)):
                more = [(0, b"%d" % rng.randrange(5), rng.choice((None, b"", b"v"))) for _ in range(rng.randrange(12))]
                append(system, log, more)
                written += more
                upcoming = base + len(written)
                if rng.random() < 0.8:
                    start = rng.randrange(start, end + 1)
                    end = rng.randrange(max(start, end), upcoming + 1)
                    admin.compact(OffsetRange(log, start, end), COMPACTOR, min_dirty_ratio=rng.choice((0.0, 0.3)))
            upcoming = base + len(written)
            for first in range(base, upcoming + 1):
                for last in range(first, upcoming + 1):
                    expected = _replayed([(key, value) for _, key, value, *_ in written[first - base : last - base]])
                    try:
                        found = _replayed([m[2:4] for m in read_compacted(system, log, first, last)])
                    except NotFoundError:
                        assert first < start or last < end, f"seed {seed}"
                    else:
                        assert found == expected, f"seed {seed}: [{first}, {last})"


def _replayed(changes: Sequence[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, bytes]:
    """The map that results from applying the changes to an empty one."""
    content: dict[bytes | None, bytes] = {}
    for key, value in changes:
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
    return content


class SystemContract(
    StreamsContract,
    ReadingContract,
    DenseOffsetsContract,
    CommitContract,
    FencingContract,
    ProgressContract,
    StreamRetentionContract,
    EndingContract,
    CompactionContract,
):
    """Inherit, and give a `system` fixture: a new, empty system for every test.

    What a system promises beyond the rest, its flags say (`System.dense_offsets`, `fences`, `commits_atomically`,
    `reports_appended`, `keeps_progress`, `readers_seek`, `retains`, `ends_streams`, `compacts_on_request`). The tests
    of a flag that is not set are skipped.
    """


__all__ = [
    "COMPACTOR",
    "STREAM",
    "SystemContract",
    "append",
    "append_all",
    "messages",
    "read",
    "read_all",
    "read_compacted",
    "records",
    "ssp",
]
