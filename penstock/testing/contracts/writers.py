"""Writers: one appends to several partitions between begin and commit, and an older epoch of it is refused. The
progress of publishing is kept in the step that publishes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, FencedError, IncompatibleError, PenstockError
from penstock.system.base import Progress, RawRecord, System, SystemAdmin, SystemWriter, WriterIdentity
from penstock.testing.contracts import STREAM, SystemRoom, append, append_all, read_all, records, ssp


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


_WAIT_SECONDS = 60


class ProgressContract(SystemRoom):
    """For systems with `keeps_progress`; the others say that they cannot."""

    @pytest.fixture
    def keeps_progress(self, system: System) -> None:
        """Skip the test for a system that does not keep progress."""
        if not system.keeps_progress:
            pytest.skip(f"{type(system).__name__} does not keep how far publishing is")

    def test_a_system_that_does_not_keep_progress_says_so(self, system: System, admin: SystemAdmin) -> None:
        if system.keeps_progress:
            pytest.skip(f"{type(system).__name__} keeps how far publishing is")
        admin.create_stream(STREAM, 1)
        writer = system.writer(WriterIdentity("job", 1))
        with pytest.raises(IncompatibleError):
            writer.progress([ssp(system, 0)])
        transaction = writer.begin()
        with pytest.raises(IncompatibleError):
            transaction.mark(ssp(system, 0), Progress(1, 0))
        transaction.abort()
        writer.close()

    @pytest.mark.usefixtures("keeps_progress")
    def test_a_mark_is_kept_by_partition_and_by_name(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 3)
        job, other = (system.writer(WriterIdentity(name, 1)) for name in ("job", "other"))
        every = [ssp(system, n) for n in range(3)]
        assert job.progress(every) == {}
        publish(job, {every[0]: Progress(7, 0), every[1]: Progress(7, 4)})
        publish(job, {every[1]: Progress(8, 0)})
        publish(other, {every[1]: Progress(3, 9)})
        assert job.progress(every) == {every[0]: Progress(7, 0), every[1]: Progress(8, 0)}
        assert job.progress(every[2:]) == {}
        assert other.progress(every) == {every[1]: Progress(3, 9)}
        assert admin.keeps_progress_of("job")
        with suppress(IncompatibleError):  # a system need not say it
            assert admin.progress_of("job", every) == {every[0]: Progress(7, 0), every[1]: Progress(8, 0)}
            assert admin.progress_of("other", every[:2]) == {every[1]: Progress(3, 9)}
            assert admin.progress_of("nobody", every) == {}
        job.close()
        other.close()

    @pytest.mark.usefixtures("keeps_progress")
    def test_progress_survives_reopening(self, system: System, admin: SystemAdmin) -> None:
        """Progress of an older epoch survives as well, and so does progress without records."""
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        for epoch, mark in ((1, Progress(2, 5)), (3, Progress(2, 6)), (5, Progress(3, 0))):
            writer = system.writer(WriterIdentity("job", epoch))
            with writer.begin() as transaction:
                transaction.mark(here, mark)
            writer.close()
            reopened = system.writer(WriterIdentity("job", epoch + 1))
            assert reopened.progress([here]) == {here: mark}
            reopened.close()
        assert read_all(system, here) == []

    @pytest.mark.usefixtures("keeps_progress")
    def test_what_is_aborted_leaves_no_mark(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 2)
        here, there = ssp(system, 0), ssp(system, 1)
        writer = system.writer(WriterIdentity("job", 1))
        transaction = writer.begin()
        transaction.append(here, records(0, 2))
        transaction.mark(here, Progress(1, 0))
        transaction.abort()
        assert writer.progress([here]) == {}
        bad: list[RawRecord] = [*records(0, 2), (1, "text", None)]  # type: ignore[list-item]
        with pytest.raises(ConfigError, match="record"):
            publish(writer, {here: Progress(1, 0), there: Progress(1, 0)}, {here: bad, there: records(0, 1)})
        assert here not in writer.progress([here, there])
        assert read_all(system, here) == []
        assert (there in writer.progress([there])) == bool(read_all(system, there))
        publish(writer, {here: Progress(1, 0)}, {here: records(0, 2)})
        assert writer.progress([here]) == {here: Progress(1, 0)}
        assert [message[1:] for message in read_all(system, here)] == records(0, 2)
        writer.close()

    @pytest.mark.usefixtures("keeps_progress")
    def test_a_mark_never_goes_back(self, system: System, admin: SystemAdmin) -> None:
        """Nor is it repeated: whoever publishes a chunk again is refused, and nothing is appended."""
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        writer = system.writer(WriterIdentity("job", 1))
        publish(writer, {here: Progress(5, 2)}, {here: records(0, 1)})
        for wrong in (Progress(5, 2), Progress(5, 1), Progress(4, 9)):
            with pytest.raises(IncompatibleError, match=r"record [45]"):
                publish(writer, {here: wrong}, {here: records(1, 1)})
        transaction = writer.begin()
        transaction.mark(here, Progress(6, 1))
        with pytest.raises(IncompatibleError, match="record 6"):
            transaction.mark(here, Progress(6, 0))
        transaction.abort()
        assert writer.progress([here]) == {here: Progress(5, 2)}
        with writer.begin() as transaction:
            for chunk in range(2):
                transaction.append(here, records(1 + chunk, 1))
                transaction.mark(here, Progress(6, chunk))
        assert writer.progress([here]) == {here: Progress(6, 1)}
        assert [message[1:] for message in read_all(system, here)] == records(0, 3)
        writer.close()

    @pytest.mark.usefixtures("keeps_progress", "fences")
    def test_an_older_epoch_marks_nothing(self, system: System, admin: SystemAdmin) -> None:
        """Neither after a fence, nor once a newer writer has read the progress."""
        admin.create_stream(STREAM, 1)
        here = ssp(system, 0)
        first, second, third = (system.writer(WriterIdentity("job", epoch)) for epoch in (1, 2, 3))
        publish(first, {here: Progress(1, 0)}, {here: records(0, 1)})
        begun = first.begin()
        begun.append(here, records(1, 1))
        begun.mark(here, Progress(1, 1))
        assert second.progress([here]) == {here: Progress(1, 0)}
        with pytest.raises(FencedError):
            begun.commit()
        begun.abort()
        with pytest.raises(FencedError):
            first.progress([here])
        admin.fence(STREAM, WriterIdentity("job", 3))
        for writer in (first, second):
            with pytest.raises(FencedError):
                publish(writer, {here: Progress(2, 0)}, {here: records(1, 1)})
            with pytest.raises(FencedError):
                writer.progress([here])
        assert third.progress([here]) == {here: Progress(1, 0)}
        publish(third, {here: Progress(1, 1)}, {here: records(1, 1)})
        assert [message[1:] for message in read_all(system, here)] == records(0, 2)
        for writer in (first, second, third):
            writer.close()

    @pytest.mark.usefixtures("keeps_progress")
    def test_a_writer_without_a_name_keeps_none(self, system: System, admin: SystemAdmin) -> None:
        admin.create_stream(STREAM, 1)
        writer = system.writer(None)
        with pytest.raises(ConfigError, match="without a name"):
            writer.progress([ssp(system, 0)])
        transaction = writer.begin()
        with pytest.raises(ConfigError, match="without a name"):
            transaction.mark(ssp(system, 0), Progress(1, 0))
        transaction.abort()
        writer.close()

    @pytest.mark.usefixtures("keeps_progress")
    def test_records_and_marks_are_there_together_however_a_process_dies(
        self, system: System, admin: SystemAdmin
    ) -> None:
        """A process publishes and is killed; the next one continues behind the marks: nothing is lost or doubled."""
        try:
            pickle.dumps(system)
        except PenstockError:
            pytest.skip(f"{type(system).__name__} is in one process")
        admin.create_stream(STREAM, 2)
        every = [ssp(system, n) for n in range(2)]
        context = multiprocessing.get_context("spawn")
        for epoch in range(1, 4):
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_publish_until_killed, args=(system, epoch, theirs))
            child.start()
            theirs.close()
            try:
                for _ in range(3 * epoch):
                    assert ours.poll(_WAIT_SECONDS), "the publishing process has stopped"
                    ours.recv()
            finally:
                child.kill()
                child.join()
            ours.close()
            writer = system.writer(WriterIdentity("job", 2 * epoch + 1))
            progress = writer.progress(every)
            writer.close()
            for at in every:
                chunks = progress[at].chunk + 1
                assert chunks >= 3 * epoch
                expected = [record for chunk in range(chunks) for record in _chunk(at, chunk)]
                assert [message[1:] for message in read_all(system, at)] == expected


def publish(
    writer: SystemWriter,
    marks: dict[SystemStreamPartition, Progress],
    parts: dict[SystemStreamPartition, Iterable[RawRecord]] | None = None,
) -> None:
    """Append and mark in one transaction."""
    with writer.begin() as transaction:
        for at, own in (parts or {}).items():
            transaction.append(at, own)
        for at, mark in marks.items():
            transaction.mark(at, mark)


def _chunk(at: SystemStreamPartition, chunk: int) -> list[RawRecord]:
    return [(1000 + chunk, b"%d" % at.partition, b"%d" % number) for number in range(10 * chunk, 10 * chunk + 10)]


def _publish_until_killed(system: System, epoch: int, done: Connection) -> None:
    writer = system.writer(WriterIdentity("job", 2 * epoch))
    every = [ssp(system, n) for n in range(2)]
    progress = writer.progress(every)
    following = {at: progress[at].chunk + 1 if at in progress else 0 for at in every}
    parent = os.getppid()
    while os.getppid() == parent:
        publish(
            writer,
            {at: Progress(1, chunk) for at, chunk in following.items()},
            {at: _chunk(at, chunk) for at, chunk in following.items()},
        )
        following = {at: chunk + 1 for at, chunk in following.items()}
        done.send(None)
