"""Offsets without gaps: a range holds as many messages as it is long."""

from __future__ import annotations

import pytest

from penstock.errors import NotFoundError
from penstock.system.base import (
    OffsetRange,
    PartitionOffsets,
    System,
    SystemAdmin,
)
from penstock.testing.contracts.systems.room import (
    STREAM,
    SystemRoom,
    append,
    messages,
    read,
    records,
    ssp,
)


class DenseOffsetsContract(SystemRoom):
    """For systems with `dense_offsets`."""

    @pytest.mark.usefixtures("dense")
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

    @pytest.mark.usefixtures("dense")
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

    @pytest.mark.usefixtures("dense")
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

    @pytest.mark.usefixtures("dense")
    def test_records_may_come_one_by_one(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        writer = system.writer(None)
        assert writer.append(ssp(system, 0), iter(records(0, 3))) == 0
        assert writer.append(ssp(system, 0), iter(())) == 3
        assert writer.append(ssp(system, 0), (record for record in records(3, 2))) == 3
        writer.close()
        assert read(system, ssp(system, 0), 0, 5) == messages(0, 5)

    @pytest.mark.usefixtures("dense")
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

    @pytest.mark.parametrize(("start", "end", "expected"), [(0, 6, 5), (5, 6, 5), (9, 12, 9), (-1, 2, -1)], ids=str)
    @pytest.mark.usefixtures("dense")
    def test_a_range_outside(self, system: System, admin: SystemAdmin, start: int, end: int, expected: int) -> None:
        admin.create_stream(STREAM, 1)
        append(system, ssp(system, 0), records(0, 5))
        with pytest.raises(NotFoundError, match=rf"`{system.name}\.{STREAM}` partition 0: expected offset {expected} "):
            next(system.reader().read(OffsetRange(ssp(system, 0), start, end), 2))

    @pytest.mark.usefixtures("dense")
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

    @pytest.mark.usefixtures("dense")
    def test_an_offset_is_never_used_twice(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        append(system, here, records(0, 5))
        self.truncate(system, here, 5)
        assert admin.offsets(STREAM)[0] == PartitionOffsets(5, 5)
        assert admin.offset_at_time(here, 0) == 5
        assert append(system, here, records(5, 1)) == 5
        assert read(system, here, 5, 6) == messages(5, 6)

    @pytest.mark.usefixtures("dense")
    def test_messages_that_go_while_they_are_read(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        append(system, here, records(0, 6))
        chunks = system.reader().read(OffsetRange(here, 0, 6), 2)
        assert next(chunks) == messages(0, 2)
        self.truncate(system, here, 5)
        with pytest.raises(NotFoundError, match="expected offset 2 "):
            next(chunks)

    @pytest.mark.usefixtures("dense")
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
