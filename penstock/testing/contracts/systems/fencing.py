"""An older epoch of a writer is refused."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError, FencedError, IncompatibleError
from penstock.system.base import (
    RawRecord,
    System,
    SystemAdmin,
    WriterIdentity,
)
from penstock.testing.contracts.systems.room import (
    STREAM,
    SystemRoom,
    append,
    read_all,
    records,
    ssp,
)


class FencingContract(SystemRoom):
    """For systems with `fences`."""

    @pytest.mark.usefixtures("fences")
    def test_an_older_epoch_is_fenced_everywhere(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        old, new = (system.writer(WriterIdentity("job", epoch)) for epoch in (1, 2))
        old.append(ssp(system, 0), records(0, 1))
        admin.fence(STREAM, WriterIdentity("job", 2))
        for partition in (0, 1):
            with pytest.raises(FencedError, match=r"`job` of epoch 1 .*epoch 2 has taken over"):
                old.append(ssp(system, partition), records(1, 3))
        with pytest.raises(FencedError):
            old.append(ssp(system, 0), [])
        new.append(ssp(system, 0), records(1, 1))
        assert [message[1:] for message in read_all(system, ssp(system, 0))] == records(0, 2)

    @pytest.mark.usefixtures("fences")
    def test_an_append_fences_its_partition(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        system.writer(WriterIdentity("job", 5)).append(ssp(system, 0), records(0, 1))
        with pytest.raises(FencedError):
            system.writer(WriterIdentity("job", 4)).append(ssp(system, 0), records(1, 1))
        with pytest.raises(FencedError):
            admin.fence(STREAM, WriterIdentity("job", 4))
        admin.fence(STREAM, WriterIdentity("job", 5))
        admin.fence(STREAM, WriterIdentity("job", 6))
        assert len(read_all(system, ssp(system, 0))) == 1

    @pytest.mark.usefixtures("fences")
    def test_other_writers_are_not_fenced(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        admin.fence(STREAM, WriterIdentity("job", 9))
        system.writer(WriterIdentity("other", 1)).append(ssp(system, 0), records(0, 1))
        append(system, ssp(system, 0), records(1, 1))
        assert [message[1:] for message in read_all(system, ssp(system, 0))] == records(0, 2)

    @pytest.mark.usefixtures("fences")
    def test_a_failed_append_does_not_fence(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        bad: list[RawRecord] = [(1, "text", None)]  # type: ignore[list-item]
        with pytest.raises(ConfigError):
            system.writer(WriterIdentity("job", 5)).append(ssp(system, 0), bad)
        system.writer(WriterIdentity("job", 4)).append(ssp(system, 0), records(0, 1))

    def test_a_system_that_does_not_fence_says_so(self, system: System, admin: SystemAdmin) -> None:
        if system.fences:
            pytest.skip(f"{type(system).__name__} fences writers")
        admin.create_stream(STREAM, 1)
        with pytest.raises(IncompatibleError):
            admin.fence(STREAM, WriterIdentity("job", 1))
        system.writer(WriterIdentity("job", 2)).append(ssp(system, 0), records(0, 1))
        system.writer(WriterIdentity("job", 1)).append(ssp(system, 0), records(1, 1))
        assert len(read_all(system, ssp(system, 0))) == 2
