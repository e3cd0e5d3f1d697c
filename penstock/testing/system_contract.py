"""What every system promises, as tests that each system's own test class inherits.

```
class TestMySystem(SystemContract):
    @pytest.fixture
    def system(self) -> System:
        return MySystem(...)
```
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, FencedError, IncompatibleError, NotFoundError, RetryableError
from penstock.system.base import (
    OffsetRange,
    PartitionOffsets,
    RawMessage,
    RawRecord,
    System,
    SystemAdmin,
    WriterIdentity,
)

STREAM = "flights.by.origin"
COMPACTOR = WriterIdentity("compactor", 1)


def records(first: int, count: int) -> list[RawRecord]:
    """`count` records that are told apart by their numbers, with rising timestamps."""
    return [(1000 + i, b"key-%d" % i, b"value-%d" % i) for i in range(first, first + count)]


class SystemContract:
    """Inherit, and give a `system` fixture: a new, empty system for every test."""

    @pytest.fixture
    def system(self) -> System:
        """A new, empty system."""
        raise NotImplementedError

    @pytest.fixture
    def admin(self, system: System) -> Iterator[SystemAdmin]:
        """An admin of the system, closed after the test."""
        admin = system.admin()
        yield admin
        admin.close()

    def truncate(self, system: System, ssp: SystemStreamPartition, before: int) -> None:
        """Make the messages with smaller offsets than `before` disappear, as retention would; override it."""
        pytest.skip(f"{type(system).__name__} has no retention to test")

    # -- creating --

    def test_create_makes_an_empty_stream(self, admin: SystemAdmin) -> None:
        assert admin.create_stream(STREAM, 3) is True
        assert admin.partition_count(STREAM) == 3
        assert admin.offsets(STREAM) == dict.fromkeys(range(3), PartitionOffsets(0, 0))
        assert admin.offsets(STREAM)[0].newest is None

    def test_create_again_changes_nothing(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        append(system, ssp(system, 1), records(0, 4))
        assert admin.create_stream(STREAM, 2) is False
        assert admin.offsets(STREAM)[1] == PartitionOffsets(0, 4)

    def test_create_with_another_count_is_refused(self, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        with pytest.raises(IncompatibleError, match=r"2 partitions; 3 were"):
            admin.create_stream(STREAM, 3)
        assert admin.partition_count(STREAM) == 2

    @pytest.mark.parametrize("partitions", [0, -1])
    def test_a_stream_has_partitions(self, admin: SystemAdmin, partitions: int) -> None:
        with pytest.raises(ConfigError):
            admin.create_stream(STREAM, partitions)

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/a", "a\0b", "a b", "a\n", "x" * 250])
    def test_bad_names_are_refused(self, admin: SystemAdmin, name: str) -> None:
        with pytest.raises(ConfigError, match="cannot be a stream's name"):
            admin.create_stream(name, 1)
        with pytest.raises(ConfigError):
            admin.partition_count(name)

    # -- what is not there --

    def test_a_stream_that_is_not_there(self, system: System, admin: SystemAdmin) -> None:
        for look in (admin.partition_count, admin.offsets, lambda s: admin.fence(s, WriterIdentity("job", 1))):
            with pytest.raises(NotFoundError, match=rf"penstock stream create {system.name}\.{STREAM} --partitions N"):
                look(STREAM)
        for step in (self._read_all, self._append_one, self._seek):
            with pytest.raises(NotFoundError, match="does not exist"):
                step(system, ssp(system, 0))

    def test_a_partition_that_is_not_there(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        for step in (self._read_all, self._append_one, self._seek):
            for partition in (2, -1):
                with pytest.raises(NotFoundError, match=f"0 to 1, not {partition}"):
                    step(system, ssp(system, partition))

    def test_a_partition_of_another_system(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        for step in (self._read_all, self._append_one, self._seek):
            with pytest.raises(ConfigError, match="elsewhere"):
                step(system, SystemStreamPartition("elsewhere", STREAM, 0))

    # -- appending and reading --

    def test_offsets_are_dense_per_partition(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        writer = system.writer(None)
        assert writer.append(ssp(system, 0), records(0, 3)) == 0
        assert writer.append(ssp(system, 1), records(50, 1)) == 0
        assert writer.append(ssp(system, 0), records(3, 2)) == 3
        assert writer.append(ssp(system, 0), []) == 5
        writer.close()
        assert admin.offsets(STREAM) == {0: PartitionOffsets(0, 5), 1: PartitionOffsets(0, 1)}
        assert admin.offsets(STREAM)[0].newest == 4
        assert read(system, ssp(system, 0), 0, 5) == messages(0, 5)

    def test_a_range_is_half_open_and_chunked(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        append(system, ssp(system, 0), records(0, 10))
        reader = system.reader()
        chunks = list(reader.read(OffsetRange(ssp(system, 0), 2, 9), 3))
        assert chunks == [messages(2, 5), messages(5, 8), messages(8, 9)]
        assert list(reader.read(OffsetRange(ssp(system, 0), 0, 6), 3)) == [messages(0, 3), messages(3, 6)]
        assert list(reader.read(OffsetRange(ssp(system, 0), 4, 4), 3)) == []
        assert list(reader.read(OffsetRange(ssp(system, 0), 10, 10), 3)) == []
        assert all(type(message) is tuple for chunk in chunks for message in chunk)
        reader.close()

    def test_chunks_are_bounded_by_bytes(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        sizes = [10, 10, 100, 3000, 5000, 10, 0, 0, 30]
        append(system, ssp(system, 0), [(0, b"k" * (size // 2), b"v" * (size - size // 2)) for size in sizes])
        append(system, ssp(system, 0), [(0, None, None)])
        reader, whole = system.reader(), OffsetRange(ssp(system, 0), 0, 10)
        chunks = list(reader.read(whole, 100, 100))
        assert [[message[0] for message in chunk] for chunk in chunks] == [[0, 1, 2], [3], [4], [5, 6, 7, 8, 9]]
        assert [message for chunk in chunks for message in chunk] == read(system, ssp(system, 0), 0, 10)
        assert [len(chunk) for chunk in reader.read(whole, 2, 100)] == [2, 1, 1, 1, 2, 2, 1]
        assert [len(chunk) for chunk in reader.read(whole, 100, 1)] == [1, 1, 1, 1, 1, 1, 3, 1]
        reader.close()

    def test_records_may_come_one_by_one(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        writer = system.writer(None)
        assert writer.append(ssp(system, 0), iter(records(0, 3))) == 0
        assert writer.append(ssp(system, 0), iter(())) == 3
        assert writer.append(ssp(system, 0), (record for record in records(3, 2))) == 3
        writer.close()
        assert read(system, ssp(system, 0), 0, 5) == messages(0, 5)

    def test_records_that_end_in_an_error_are_not_appended(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)

        def broken() -> Iterator[RawRecord]:
            yield from records(0, 3)
            raise RuntimeError("the source broke")

        writer = system.writer(None)
        with pytest.raises(RuntimeError, match="the source broke"):
            writer.append(ssp(system, 0), broken())
        assert admin.offsets(STREAM)[0] == PartitionOffsets(0, 0)
        assert writer.append(ssp(system, 0), records(0, 1)) == 0
        writer.close()

    def test_two_reads_at_once_and_one_left_unfinished(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        append(system, ssp(system, 0), records(0, 6))
        reader = system.reader()
        left = reader.read(OffsetRange(ssp(system, 0), 0, 6), 2)
        assert next(left) == messages(0, 2)
        append(system, ssp(system, 0), records(6, 1))
        assert list(reader.read(OffsetRange(ssp(system, 0), 3, 7), 10)) == [messages(3, 7)]
        assert next(left) == messages(2, 4)
        reader.close()

    def test_every_kind_of_value_comes_back(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        kinds: list[RawRecord] = [
            (0, None, None),
            (-5, b"", b""),
            (2**62, bytes(range(256)), b"\0" * 100_000),
            (7, b"'; DROP TABLE message; --", "é".encode()),
        ]
        append(system, ssp(system, 0), kinds)
        assert read(system, ssp(system, 0), 0, 4) == [(i, *record) for i, record in enumerate(kinds)]

    @pytest.mark.parametrize(
        "bad", [(None, b"k", b"v"), ("1", b"k", b"v"), (1, "k", b"v"), (1, b"k", 5), (1, b"k"), (1, b"k", object())]
    )
    def test_a_batch_with_a_bad_record_appends_nothing(
        self, system: System, admin: SystemAdmin, bad: RawRecord
    ) -> None:
        admin.create_stream(STREAM, 1)
        writer = system.writer(None)
        with pytest.raises(ConfigError, match="record"):
            writer.append(ssp(system, 0), [*records(0, 5), bad])
        assert admin.offsets(STREAM)[0] == PartitionOffsets(0, 0)
        assert writer.append(ssp(system, 0), records(0, 1)) == 0
        writer.close()

    @pytest.mark.parametrize(
        ("start", "end", "chunk", "size"), [(3, 2, 10, 10), (0, 2, 0, 10), (0, 2, -1, 10), (0, 2, 10, 0)]
    )
    def test_a_read_without_sense(
        self, system: System, admin: SystemAdmin, start: int, end: int, chunk: int, size: int
    ) -> None:
        admin.create_stream(STREAM, 1)
        append(system, ssp(system, 0), records(0, 5))
        with pytest.raises(ConfigError):
            system.reader().read(OffsetRange(ssp(system, 0), start, end), chunk, size)

    # -- ranges that are not there --

    @pytest.mark.parametrize(("start", "end", "expected"), [(0, 6, 5), (5, 6, 5), (9, 12, 9), (-1, 2, -1)], ids=str)
    def test_a_range_outside(self, system: System, admin: SystemAdmin, start: int, end: int, expected: int) -> None:
        admin.create_stream(STREAM, 1)
        append(system, ssp(system, 0), records(0, 5))
        with pytest.raises(NotFoundError, match=rf"`{system.name}\.{STREAM}` partition 0: expected offset {expected} "):
            next(system.reader().read(OffsetRange(ssp(system, 0), start, end), 2))

    def test_truncated_messages_are_an_error(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        append(system, here, records(0, 5))
        self.truncate(system, here, 2)
        assert admin.offsets(STREAM)[0] == PartitionOffsets(2, 5)
        assert read(system, here, 2, 5) == messages(2, 5)
        with pytest.raises(NotFoundError, match=r"expected offset 1 .*oldest one is 2"):
            read(system, here, 1, 5)
        assert admin.offset_at_time(here, 0) == 2
        assert admin.offset_at_time(here, 1004) == 4

    def test_an_offset_is_never_used_twice(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        append(system, here, records(0, 5))
        self.truncate(system, here, 5)
        assert admin.offsets(STREAM)[0] == PartitionOffsets(5, 5)
        assert admin.offset_at_time(here, 0) == 5
        assert append(system, here, records(5, 1)) == 5
        assert read(system, here, 5, 6) == messages(5, 6)

    def test_messages_that_go_while_they_are_read(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        append(system, here, records(0, 6))
        chunks = system.reader().read(OffsetRange(here, 0, 6), 2)
        assert next(chunks) == messages(0, 2)
        self.truncate(system, here, 5)
        with pytest.raises(NotFoundError, match="expected offset 2 "):
            next(chunks)

    # -- finding by time --

    def test_offset_at_time(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        assert admin.offset_at_time(here, 0) == 0
        times = [[10, 20, 20], [15, 5], [30], [30, 25, 40], [7]]
        for batch in times:
            append(system, here, [(t, None, None) for t in batch])
        flat = [t for batch in times for t in batch]
        for wanted in range(45):
            expected = next((o for o, t in enumerate(flat) if t >= wanted), len(flat))
            assert admin.offset_at_time(here, wanted) == expected, wanted

    def test_several_partitions_are_appended_to_in_one_call(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 20)
        writer = system.writer(None)
        for start in (0, 2):
            writer.append_all({ssp(system, n): records(n + start, 2) for n in range(20)})
        for n in range(20):
            assert [m[1:] for m in read(system, ssp(system, n), 0, 4)] == records(n, 4)
        writer.append_all({})
        writer.close()

    def test_a_partition_that_refuses_leaves_the_others_whole(self, system: System, admin: SystemAdmin) -> None:
        """The error of the one that refuses is raised; each of the others has all of its records or none."""
        admin.create_stream(STREAM, 4)
        system.writer(WriterIdentity("job", 5)).append(ssp(system, 2), [])
        writer = system.writer(WriterIdentity("job", 4))
        with pytest.raises(FencedError):
            writer.append_all({ssp(system, n): records(0, 3) for n in range(4)})
        assert [admin.offsets(STREAM)[n].upcoming in (0, 3) for n in range(4)] == [True] * 4
        assert admin.offsets(STREAM)[2].upcoming == 0

    def test_streams_are_listed_and_deleted(self, system: System, admin: SystemAdmin) -> None:
        assert admin.streams() == []
        for name in ("b.2", "a"):
            admin.create_stream(name, 2)
        assert admin.streams() == ["a", "b.2"]
        append(system, SystemStreamPartition(system.name, "a", 0), records(0, 3))
        admin.delete_stream("a")
        assert admin.streams() == ["b.2"]
        for call in (admin.partition_count, admin.delete_stream):
            with pytest.raises(NotFoundError):
                call("a")
        assert admin.create_stream("a", 1)
        assert admin.offsets("a")[0].upcoming == 0

    def test_a_writer_does_not_write_into_a_deleted_stream(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        writer = system.writer(None)
        writer.append(ssp(system, 0), records(0, 1))
        admin.delete_stream(STREAM)
        with pytest.raises(NotFoundError):
            writer.append(ssp(system, 0), records(1, 1))
        writer.close()

    # -- fencing --

    def test_an_older_epoch_is_fenced_everywhere(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        old, new = (system.writer(WriterIdentity("job", epoch)) for epoch in (1, 2))
        assert old.append(ssp(system, 0), records(0, 1)) == 0
        admin.fence(STREAM, WriterIdentity("job", 2))
        for partition in (0, 1):
            with pytest.raises(FencedError, match=r"`job` of epoch 1 .*epoch 2 has taken over"):
                old.append(ssp(system, partition), records(1, 3))
        with pytest.raises(FencedError):
            old.append(ssp(system, 0), [])
        assert new.append(ssp(system, 0), records(1, 1)) == 1
        assert read(system, ssp(system, 0), 0, 2) == messages(0, 2)

    def test_an_append_fences_its_partition(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        system.writer(WriterIdentity("job", 5)).append(ssp(system, 0), records(0, 1))
        with pytest.raises(FencedError):
            system.writer(WriterIdentity("job", 4)).append(ssp(system, 0), records(1, 1))
        with pytest.raises(FencedError):
            admin.fence(STREAM, WriterIdentity("job", 4))
        admin.fence(STREAM, WriterIdentity("job", 5))
        admin.fence(STREAM, WriterIdentity("job", 6))
        assert admin.offsets(STREAM)[0].upcoming == 1

    def test_other_writers_are_not_fenced(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        admin.fence(STREAM, WriterIdentity("job", 9))
        assert system.writer(WriterIdentity("other", 1)).append(ssp(system, 0), records(0, 1)) == 0
        assert append(system, ssp(system, 0), records(1, 1)) == 1

    def test_a_failed_append_does_not_fence(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        bad: list[RawRecord] = [(1, "text", None)]  # type: ignore[list-item]
        with pytest.raises(ConfigError):
            system.writer(WriterIdentity("job", 5)).append(ssp(system, 0), bad)
        assert system.writer(WriterIdentity("job", 4)).append(ssp(system, 0), records(0, 1)) == 0

    # -- owners --

    def test_a_stream_has_the_first_owner_that_is_named(self, system: System, admin: SystemAdmin) -> None:
        if not system.compacts_on_request:
            pytest.skip(f"{type(system).__name__} does not compact on request")
        admin.create_stream(STREAM, 2)
        admin.create_stream("others", 1)
        assert admin.owner(STREAM) is None
        assert admin.own(STREAM, "one") == "one"
        assert admin.own(STREAM, "two") == "one"
        assert (admin.owner(STREAM), admin.owner("others")) == ("one", None)
        again = system.admin()
        assert (again.own(STREAM, "two"), again.owner(STREAM)) == ("one", "one")
        again.close()
        for look in (admin.owner, lambda stream: admin.own(stream, "one")):
            with pytest.raises(NotFoundError):
                look("nowhere")

    # -- retention --

    def test_a_stream_keeps_its_messages_unless_it_has_limits(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        admin.create_stream("others", 1, StreamRetention())
        assert admin.retention(STREAM) == admin.retention("others") == StreamRetention()
        with pytest.raises(NotFoundError):
            admin.retention("nowhere")

    def test_a_system_that_cannot_delete_old_messages_says_so(self, system: System, admin: SystemAdmin) -> None:
        if system.retains:
            pytest.skip(f"{type(system).__name__} can delete old messages")
        admin.create_stream(STREAM, 1)
        with pytest.raises(ConfigError):
            admin.set_retention(STREAM, StreamRetention(max_age_ms=1000))
        with pytest.raises(ConfigError):
            admin.create_stream("others", 1, StreamRetention(max_age_ms=1000))

    @pytest.fixture
    def limited(self, system: System, admin: SystemAdmin) -> SystemStreamPartition:
        """A partition of a stream that keeps 1 MB in each."""
        if not system.retains:
            pytest.skip(f"{type(system).__name__} cannot delete old messages")
        assert admin.create_stream(STREAM, 2, StreamRetention(max_bytes=1 << 20))
        return ssp(system, 1)

    def test_limits_are_kept_and_changed(self, system: System, limited: SystemStreamPartition) -> None:
        admin = system.admin()
        assert admin.retention(STREAM) == StreamRetention(max_bytes=1 << 20)
        assert admin.create_stream(STREAM, 2) is False
        assert admin.create_stream(STREAM, 2, StreamRetention(max_bytes=1 << 20)) is False
        with pytest.raises(IncompatibleError):
            admin.create_stream(STREAM, 2, StreamRetention(max_age_ms=1000))
        assert admin.set_retention(STREAM, StreamRetention(max_age_ms=86_400_000)) == 0
        assert system.admin().retention(STREAM) == StreamRetention(max_age_ms=86_400_000)
        admin.set_retention(STREAM, StreamRetention())
        assert system.admin().retention(STREAM) == StreamRetention()

    def test_appends_delete_what_is_too_much(
        self, system: System, admin: SystemAdmin, limited: SystemStreamPartition
    ) -> None:
        for count in range(8):
            assert append(system, limited, [(count, b"k", bytes(300_000))]) == count
        ends = admin.offsets(STREAM)
        assert ends[0] == PartitionOffsets(0, 0)
        assert ends[1].upcoming == 8
        assert 4 < ends[1].oldest < 8
        assert [message[0] for message in read(system, limited, ends[1].oldest, 8)] == list(range(ends[1].oldest, 8))
        with pytest.raises(NotFoundError, match=rf"{ends[1].oldest}"):
            read(system, limited, ends[1].oldest - 1, 8)

    def test_a_stream_with_an_owner_has_no_limits(self, admin: SystemAdmin, limited: SystemStreamPartition) -> None:
        with pytest.raises(ConfigError):
            admin.own(STREAM, "one")
        admin.set_retention(STREAM, StreamRetention())
        assert admin.own(STREAM, "one") == "one"
        with pytest.raises(ConfigError, match="one"):
            admin.set_retention(STREAM, StreamRetention(max_age_ms=1000))

    # -- compaction --

    @pytest.fixture
    def log(self, system: System, admin: SystemAdmin) -> SystemStreamPartition:
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
        with pytest.raises(NotFoundError, match=r"\[3, 6\) cannot be compacted, there are \[4, 6\)"):
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
        """What it held cannot be told any more: some of it went for newer records behind its end."""
        append(system, log, [(i, b"k", b"%d" % i) for i in range(6)])
        admin.compact(OffsetRange(log, 0, 4), COMPACTOR)
        for end in (1, 3):
            with pytest.raises(NotFoundError, match=rf"\[0, {end}\) can no longer be told apart.* before 4 "):
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
                    expected = _replayed([(key, value) for _, key, value in written[first - base : last - base]])
                    try:
                        found = _replayed([m[2:] for m in read_compacted(system, log, first, last)])
                    except NotFoundError:
                        assert first < start or last < end, f"seed {seed}"
                    else:
                        assert found == expected, f"seed {seed}: [{first}, {last})"

    # -- the steps that are tried in wrong places --

    def _read_all(self, system: System, where: SystemStreamPartition) -> None:
        read(system, where, 0, 1)

    def _append_one(self, system: System, where: SystemStreamPartition) -> None:
        append(system, where, records(0, 1))

    def _seek(self, system: System, where: SystemStreamPartition) -> None:
        system.admin().offset_at_time(where, 0)


def ssp(system: System, partition: int) -> SystemStreamPartition:
    """A partition of the stream the contract works on."""
    return SystemStreamPartition(system.name, STREAM, partition)


def messages(start: int, end: int) -> list[RawMessage]:
    """What is read after `records(0, ...)` were appended to an empty partition."""
    return [(i, *record) for i, record in enumerate(records(start, end - start), start)]


def append(system: System, where: SystemStreamPartition, batch: Sequence[RawRecord]) -> int:
    """Append with a writer of its own."""
    writer = system.writer(None)
    try:
        return writer.append(where, batch)
    finally:
        writer.close()


def read(system: System, where: SystemStreamPartition, start: int, end: int) -> list[RawMessage]:
    """Read a range with a reader of its own."""
    reader = system.reader()
    try:
        return [message for chunk in reader.read(OffsetRange(where, start, end), 1000) for message in chunk]
    finally:
        reader.close()


def read_compacted(system: System, where: SystemStreamPartition, start: int, end: int) -> list[RawMessage]:
    """Read what is left of a range with a reader of its own."""
    reader = system.reader()
    try:
        chunks = reader.read_compacted(OffsetRange(where, start, end), 1000)
        return [message for chunk in chunks for message in chunk]
    finally:
        reader.close()


def _replayed(changes: Sequence[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, bytes]:
    """What the changes make of an empty map."""
    content: dict[bytes | None, bytes] = {}
    for key, value in changes:
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
    return content
