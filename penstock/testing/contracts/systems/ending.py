"""Streams that somebody has declared ended."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError, NotFoundError
from penstock.system.base import PartitionOffsets, System, SystemAdmin
from penstock.testing.contracts.systems.room import STREAM, SystemRoom, append, read, records, ssp


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
