"""Streams: they are made, found and deleted, declared ended, and delete their oldest messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.system.base import PartitionOffsets, System, SystemAdmin, WriterIdentity
from penstock.testing.contracts import STREAM, SystemRoom, append, read, read_all, records, ssp


class StreamsContract(SystemRoom):
    """For every system."""

    def test_create_makes_an_empty_stream(self, admin: SystemAdmin) -> None:
        assert admin.create_stream(STREAM, 3) is True
        assert admin.partition_count(STREAM) == 3
        assert admin.offsets(STREAM) == dict.fromkeys(range(3), PartitionOffsets(0, 0))
        assert admin.offsets(STREAM)[0].newest is None

    def test_create_again_changes_nothing(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        append(system, ssp(system, 1), records(0, 4))
        assert admin.create_stream(STREAM, 2) is False
        assert [message[1:] for message in read_all(system, ssp(system, 1))] == records(0, 4)

    def test_a_stream_is_distinguished_from_others_of_its_name(self, system: System, admin: SystemAdmin) -> None:
        """Whatever is written to it or created beside it; every admin says the same."""
        for stream in (STREAM, "others"):
            admin.create_stream(stream, 2)
        first = admin.stream_identity(STREAM)
        append(system, ssp(system, 1), records(0, 4))
        admin.create_stream(STREAM, 2)
        again = system.admin()
        assert again.stream_identity(STREAM) == admin.stream_identity(STREAM) == first
        again.close()
        if first is not None:
            assert first != admin.stream_identity("others")
            admin.delete_stream(STREAM)
            admin.create_stream(STREAM, 2)
            assert admin.stream_identity(STREAM) not in {None, first}
        with pytest.raises(NotFoundError):
            admin.stream_identity("nowhere")

    def test_a_stream_is_complete_until_something_goes(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        append(system, ssp(system, 1), records(0, 4))
        assert admin.complete_from(STREAM) == {number: ends.oldest for number, ends in admin.offsets(STREAM).items()}
        with pytest.raises(NotFoundError):
            admin.complete_from("nowhere")

    def test_create_with_another_count_is_refused(self, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        with pytest.raises(IncompatibleError, match=r"\b2\b.*\b3\b"):
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

    def test_a_stream_that_is_not_there(self, system: System, admin: SystemAdmin) -> None:
        looks: list[Callable[[str], object]] = [admin.partition_count, admin.offsets]
        if system.fences:
            looks.append(lambda stream: admin.fence(stream, WriterIdentity("job", 1)))
        for look in looks:
            with pytest.raises(NotFoundError, match=rf"penstock stream create {system.name}\.{STREAM} --partitions N"):
                look(STREAM)
        for step in (self._read_all, self._append_one, self._seek):
            with pytest.raises(NotFoundError, match="does not exist"):
                step(system, ssp(system, 0))

    def test_a_partition_that_is_not_there(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        for step in (self._read_all, self._append_one, self._seek):
            for partition in (2, -1):
                with pytest.raises(NotFoundError, match=rf"[^0-9]{partition}\b"):
                    step(system, ssp(system, partition))

    def test_an_integer_names_an_offset_and_no_other_text_does(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        assert [admin.named_offset(ssp(system, 0), text) for text in ("0", "12", "-3")] == [0, 12, -3]
        with pytest.raises(IncompatibleError, match="`no such message` is not an offset of"):
            admin.named_offset(ssp(system, 0), "no such message")

    def test_a_partition_of_another_system(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        for step in (self._read_all, self._append_one, self._seek):
            with pytest.raises(ConfigError, match="elsewhere"):
                step(system, SystemStreamPartition("elsewhere", STREAM, 0))

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

    def _read_all(self, system: System, where: SystemStreamPartition) -> None:
        read(system, where, 0, 1)

    def _append_one(self, system: System, where: SystemStreamPartition) -> None:
        append(system, where, records(0, 1))

    def _seek(self, system: System, where: SystemStreamPartition) -> None:
        system.admin().offset_at_time(where, 0)


class EndingContract(SystemRoom):
    """For systems with `ends_streams`; the others say that they cannot."""

    def test_a_stream_that_has_ended_says_so(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        append(system, ssp(system, 0), records(0, 3))
        assert not any(ends.ended for ends in admin.offsets(STREAM).values())
        if not system.ends_streams:
            with pytest.raises(ConfigError):
                admin.end_stream(STREAM)
            return
        admin.end_stream(STREAM)
        admin.end_stream(STREAM)
        for each in (admin, system.admin()):
            found = each.offsets(STREAM)
            assert [ends.ended for ends in found.values()] == [True, True]
            assert len(read(system, ssp(system, 0), found[0].oldest, found[0].upcoming)) == 3
        with pytest.raises(NotFoundError):
            admin.end_stream("nowhere")

    def test_an_append_begins_a_partition_again(self, system: System, admin: SystemAdmin) -> None:
        if not system.ends_streams:
            pytest.skip(f"{type(system).__name__} cannot end streams")
        admin.create_stream(STREAM, 2)
        admin.end_stream(STREAM)
        append(system, ssp(system, 1), [])
        assert [ends.ended for ends in admin.offsets(STREAM).values()] == [True, True], "nothing was appended"
        append(system, ssp(system, 1), records(0, 2))
        assert admin.offsets(STREAM)[0] == PartitionOffsets(0, 0, ended=True)
        assert not admin.offsets(STREAM)[1].ended
        admin.end_stream(STREAM)
        assert admin.offsets(STREAM)[1].ended

    def test_a_changelog_does_not_end(self, system: System, admin: SystemAdmin) -> None:
        if not system.ends_streams or not system.compacts_on_request:
            pytest.skip(f"{type(system).__name__} cannot end streams, or keeps no owners")
        admin.create_stream(STREAM, 1)
        admin.own(STREAM, "somebody")
        with pytest.raises(ConfigError, match="somebody"):
            admin.end_stream(STREAM)


class StreamRetentionContract(SystemRoom):
    """For systems with `retains`; the others say that they cannot."""

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

    @pytest.mark.usefixtures("dense")
    def test_appends_delete_what_is_too_much(
        self, system: System, admin: SystemAdmin, limited: SystemStreamPartition
    ) -> None:
        for count in range(8):
            assert append(system, limited, [(count, b"k", bytes(300_000))]) == count
        ends = admin.offsets(STREAM)
        assert ends[0] == PartitionOffsets(0, 0)
        assert ends[1].upcoming == 8
        assert 4 < ends[1].oldest < 8
        assert admin.complete_from(STREAM) == {0: 0, 1: ends[1].oldest}
        assert [message[0] for message in read(system, limited, ends[1].oldest, 8)] == list(range(ends[1].oldest, 8))
        with pytest.raises(NotFoundError, match=rf"{ends[1].oldest}"):
            read(system, limited, ends[1].oldest - 1, 8)

    def test_a_stream_with_an_owner_has_no_limits(
        self, system: System, admin: SystemAdmin, limited: SystemStreamPartition
    ) -> None:
        if not system.compacts_on_request:
            pytest.skip(f"{type(system).__name__} has no owners")
        with pytest.raises(ConfigError):
            admin.own(STREAM, "one")
        admin.set_retention(STREAM, StreamRetention())
        assert admin.own(STREAM, "one") == "one"
        with pytest.raises(ConfigError, match="one"):
            admin.set_retention(STREAM, StreamRetention(max_age_ms=1000))
