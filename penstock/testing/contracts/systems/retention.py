"""Streams that delete their oldest messages."""

from __future__ import annotations

import pytest

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.system.base import (
    PartitionOffsets,
    System,
    SystemAdmin,
)
from penstock.testing.contracts.systems.room import (
    STREAM,
    SystemRoom,
    append,
    read,
    ssp,
)


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
