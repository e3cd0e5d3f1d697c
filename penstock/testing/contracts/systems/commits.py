"""A writer appends to several partitions between begin and commit."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError, FencedError
from penstock.system.base import (
    RawRecord,
    System,
    SystemAdmin,
    WriterIdentity,
)
from penstock.testing.contracts.systems.room import (
    STREAM,
    SystemRoom,
    append_all,
    read_all,
    records,
    ssp,
)


class CommitContract(SystemRoom):
    """For every system; `commits_atomically` says how much a commit promises."""

    def test_several_partitions_are_appended_to_in_one_commit(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 20)
        writer = system.writer(None)
        for start in (0, 2):
            append_all(writer, {ssp(system, n): records(n + start, 2) for n in range(20)})
        for n in range(20):
            assert [m[1:] for m in read_all(system, ssp(system, n))] == records(n, 4)
        append_all(writer, {})
        writer.close()

    def test_records_of_a_partition_stay_in_the_order_of_the_calls(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        writer = system.writer(None)
        with writer.begin() as transaction:
            for start in range(0, 6, 2):
                for n in range(2):
                    transaction.append(ssp(system, n), iter(records(start, 2)))
        writer.close()
        for n in range(2):
            assert [m[1:] for m in read_all(system, ssp(system, n))] == records(0, 6)

    def test_nothing_of_a_transaction_that_was_aborted_is_there(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        writer = system.writer(None)
        transaction = writer.begin()
        transaction.append(ssp(system, 0), records(0, 3))
        transaction.abort()

        def broken() -> None:
            with writer.begin() as transaction:
                transaction.append(ssp(system, 1), records(0, 3))
                raise RuntimeError("in between")

        with pytest.raises(RuntimeError, match="in between"):
            broken()
        assert [read_all(system, ssp(system, n)) for n in range(2)] == [[], []]
        append_all(writer, {ssp(system, 0): records(0, 1)})
        assert [m[1:] for m in read_all(system, ssp(system, 0))] == records(0, 1)
        writer.close()

    @pytest.mark.usefixtures("fences")
    def test_a_partition_that_refuses_leaves_the_others_whole(self, system: System, admin: SystemAdmin) -> None:
        """The error of the one that refuses is raised; each of the others has all of its records or none, and none
        where a commit is one step."""
        admin.create_stream(STREAM, 4)
        system.writer(WriterIdentity("job", 5)).append(ssp(system, 2), [])
        writer = system.writer(WriterIdentity("job", 4))
        with pytest.raises(FencedError):
            append_all(writer, {ssp(system, n): records(0, 3) for n in range(4)})
        found = [[m[1:] for m in read_all(system, ssp(system, n))] for n in range(4)]
        assert found[2] == []
        assert all(each in ([], records(0, 3)) for each in found)
        if system.commits_atomically:
            assert found == [[]] * 4
        writer.close()

    def test_a_commit_says_which_offsets_its_records_got(self, system: System, admin: SystemAdmin) -> None:
        """And no others, although another writer appends between its commits."""
        if not system.reports_appended:
            pytest.skip("the system does not report what was appended")
        admin.create_stream(STREAM, 3)
        writers = {name: system.writer(WriterIdentity(name, 1)) for name in ("one", "other")}
        ranges: dict[str, list[tuple[int, int, int]]] = {name: [] for name in writers}
        sent: dict[str, list[list[RawRecord]]] = {name: [[], [], []] for name in writers}
        for step, name in enumerate(["one", "other", "other", "one", "other", "one"]):
            with writers[name].begin() as transaction:
                for n in range(3):
                    added = records(100 * step, (step + n) % 3)
                    sent[name][n] += added
                    transaction.append(ssp(system, n), added)
            for at, own in transaction.appended().items():
                assert all(start < end for start, end in own)
                ranges[name] += [(at.partition, start, end) for start, end in own]
        for name, writer in writers.items():
            writer.close()
            for n in range(3):
                offsets = [o for p, start, end in ranges[name] if p == n for o in range(start, end)]
                found = [message for message in read_all(system, ssp(system, n)) if message[0] in offsets]
                assert [message[1:] for message in found] == sent[name][n]

    def test_a_bad_record_leaves_every_partition_whole(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 3)
        bad: list[RawRecord] = [*records(0, 2), (1, "text", None)]  # type: ignore[list-item]
        writer = system.writer(None)
        with pytest.raises(ConfigError, match="record"):
            append_all(writer, {ssp(system, n): bad if n == 1 else records(0, 2) for n in range(3)})
        found = [[m[1:] for m in read_all(system, ssp(system, n))] for n in range(3)]
        assert found[1] == []
        assert all(each in ([], records(0, 2)) for each in found)
        writer.close()
