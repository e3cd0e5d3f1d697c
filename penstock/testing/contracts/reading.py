"""Appending and reading, whatever the offsets are: they grow, and may have gaps.

Where a system promises offsets without gaps, a range holds as many messages as it is long.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from penstock.errors import ConfigError, NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets, RawRecord, System, SystemAdmin, headers_in
from penstock.testing.contracts import STREAM, SystemRoom, append, messages, read, read_all, records, ssp


class ReadingContract(SystemRoom):
    """For every system."""

    def test_messages_come_back_in_order_with_growing_offsets(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        here, writer = ssp(system, 1), system.writer(None)
        firsts = [writer.append(here, records(start, count)) for start, count in ((0, 3), (3, 1), (4, 20))]
        ends = admin.offsets(STREAM)[1]
        assert writer.append(here, []) == ends.upcoming
        writer.close()
        found = read_all(system, here)
        offsets = [message[0] for message in found]
        assert [message[1:] for message in found] == records(0, 24)
        assert all(a < b for a, b in pairwise([*offsets, ends.upcoming]))
        assert [offsets[0], offsets[3], offsets[4]] == firsts
        assert 0 <= ends.oldest <= offsets[0]
        assert read_all(system, ssp(system, 0)) == []

    def test_a_range_holds_the_messages_whose_offsets_are_in_it(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        append(system, here, records(0, 30))
        whole, ends = read_all(system, here), admin.offsets(STREAM)[0]
        rng = random.Random(1)  # noqa: S311 - reproducible, not secret
        for _ in range(50):
            start, end = sorted(rng.choices(range(ends.oldest, ends.upcoming + 1), k=2))
            assert read(system, here, start, end) == [message for message in whole if start <= message[0] < end]

    def test_lists_are_bounded(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        append(system, here, [(0, b"k", bytes(size)) for size in (10, 0, 500, 20, 20, 20, 300, 1)])
        ends, whole, reader = admin.offsets(STREAM)[0], read_all(system, here), system.reader()
        for most, size in ((1, 10_000), (3, 10_000), (100, 1), (100, 50), (2, 30)):
            chunks = list(reader.read(OffsetRange(here, ends.oldest, ends.upcoming), most, size))
            assert [message for chunk in chunks for message in chunk] == whole
            assert all(0 < len(chunk) <= most for chunk in chunks)
            for chunk in chunks:
                assert sum(len((m[2] or b"") + (m[3] or b"")) for m in chunk[:-1]) < size
        reader.close()

    def test_a_range_that_ends_behind_the_end(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        append(system, ssp(system, 0), records(0, 5))
        ends = admin.offsets(STREAM)[0]
        for start in (ends.oldest, ends.upcoming):
            with pytest.raises(NotFoundError, match=rf"`{system.name}\.{STREAM}` partition 0: "):
                read(system, ssp(system, 0), start, ends.upcoming + 1)

    def test_the_first_message_at_or_after_a_time(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        for batch in ([10, 20, 20], [15, 5], [30, 25, 40], [7]):
            append(system, here, [(time, None, None) for time in batch])
        whole, upcoming = read_all(system, here), admin.offsets(STREAM)[0].upcoming
        for wanted in range(45):
            expected = next((message[0] for message in whole if message[1] >= wanted), upcoming)
            assert admin.offset_at_time(here, wanted) == expected, wanted

    def test_a_read_that_is_left_is_continued_behind_its_last_list(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here, reader = ssp(system, 0), system.reader()
        append(system, here, records(0, 30))
        ends, found = admin.offsets(STREAM)[0], []
        start = ends.oldest
        for most in (1, 4, 10, 3, 30):
            found += next(iter(reader.read(OffsetRange(here, start, ends.upcoming), most)))
            start = found[-1][0] + 1
        assert [message[1:] for message in found] == records(0, 30)
        reader.close()

    def test_a_reader_that_is_kept_sees_what_comes_later(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        here, reader, start = ssp(system, 0), system.reader(), 0
        for number in range(5):
            append(system, here, records(number, 1))
            ends = admin.offsets(STREAM)[0]
            (chunk,) = reader.read(OffsetRange(here, start, ends.upcoming), 10)
            assert [message[1:] for message in chunk] == records(number, 1)
            start = ends.upcoming
        reader.close()

    def test_a_reader_that_seeks_reads_any_range_again(self, system: System, admin: SystemAdmin) -> None:
        if not system.readers_seek:
            pytest.skip(f"{type(system).__name__} has readers that go forward only")
        admin.create_stream(STREAM, 2)
        for partition in (0, 1):
            append(system, ssp(system, partition), records(partition, 5))
        reader, whole = system.reader(), [read_all(system, ssp(system, partition)) for partition in (0, 1)]
        for partition, first in ((0, 3), (1, 0), (0, 0), (0, 3), (1, 2)):
            wanted = whole[partition][first:]
            offsets = OffsetRange(ssp(system, partition), wanted[0][0], wanted[-1][0] + 1)
            assert [message for chunk in reader.read(offsets, 2) for message in chunk] == wanted
        reader.close()

    def test_a_kept_reader_follows_a_stream_that_was_made_again(self, system: System, admin: SystemAdmin) -> None:
        if not system.readers_seek:
            pytest.skip(f"{type(system).__name__} has readers that go forward only")
        admin.create_stream(STREAM, 1)
        here, reader = ssp(system, 0), system.reader()
        for number in range(3):
            append(system, here, records(number, 5))
            ends = admin.offsets(STREAM)[0]
            chunks = reader.read(OffsetRange(here, ends.oldest, ends.upcoming), 10)
            assert [message[1:] for chunk in chunks for message in chunk] == records(number, 5)
            admin.delete_stream(STREAM)
            with pytest.raises(NotFoundError):
                list(reader.read(OffsetRange(here, ends.oldest, ends.upcoming), 10))
            admin.create_stream(STREAM, 1)
        reader.close()

    def test_records_that_end_in_an_error_are_not_appended(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)

        def broken() -> Iterator[RawRecord]:
            yield from records(0, 3)
            raise RuntimeError("the source broke")

        writer = system.writer(None)
        with pytest.raises(RuntimeError, match="the source broke"):
            writer.append(ssp(system, 0), broken())
        assert read_all(system, ssp(system, 0)) == []
        writer.append(ssp(system, 0), records(0, 1))
        assert [message[1:] for message in read_all(system, ssp(system, 0))] == records(0, 1)
        writer.close()

    def test_every_kind_of_value_comes_back(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        earliest, latest = self.timestamps
        kinds: list[RawRecord] = [
            (earliest, None, None),
            (1, b"", b""),
            (latest, bytes(range(256)), b"\0" * 100_000),
            (7, b"'; DROP TABLE message; --", "é".encode()),
        ]
        append(system, ssp(system, 0), kinds)
        assert [message[1:] for message in read_all(system, ssp(system, 0))] == kinds

    def test_headers_come_back_or_are_not_sent(self, system: System, admin: SystemAdmin) -> None:
        if not system.carries_headers:
            pytest.skip(f"{type(system).__name__} has no headers")
        admin.create_stream(STREAM, 1)
        headers = (("trace", b"7f"), ("é", None), ("trace", b""))
        plain = records(0, 3)
        append(system, ssp(system, 0), [plain[0], (*plain[1][:3], headers), plain[2]])
        append(system, ssp(system, 0), [(1, None, None, (("only", b"\xff\0"),))])
        found = read_all(system, ssp(system, 0))
        assert [headers_in(message) for message in found] == [(), headers, (), (("only", b"\xff\0"),)]
        assert [message[1:4] for message in found] == [*plain, (1, None, None)]

    @pytest.mark.parametrize(
        "bad",
        [
            (None, b"k", b"v"),
            ("1", b"k", b"v"),
            (1, "k", b"v"),
            (1, b"k", 5),
            (1, b"k"),
            (1, b"k", object()),
            (1, b"k", b"v", 5),
        ],
    )
    def test_a_batch_with_a_bad_record_appends_nothing(
        self, system: System, admin: SystemAdmin, bad: RawRecord
    ) -> None:
        admin.create_stream(STREAM, 1)
        writer = system.writer(None)
        with pytest.raises(ConfigError, match="record"):
            writer.append(ssp(system, 0), [*records(0, 5), bad])
        assert read_all(system, ssp(system, 0)) == []
        writer.append(ssp(system, 0), records(0, 1))
        assert [message[1:] for message in read_all(system, ssp(system, 0))] == records(0, 1)
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
