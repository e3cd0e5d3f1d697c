"""The readers and writers of a worker stay open from batch to batch, are few, and read nothing of what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark import cloudpickle

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.errors import FencedError, NotFoundError
from penstock.graph.topology import plan_topology
from penstock.runtime.messages.packet import Packet, PacketKind
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.sink import OuterStages, OutputWriters
from penstock.runtime.stage.source import InputReaders, ReadProgress
from penstock.spark.workers import worker
from penstock.system.base import CHUNK_BYTES, OffsetRange, RawMessage, RawRecord, SystemReader, WriterIdentity
from penstock.system.local import LocalSystem
from penstock.wire.ports import PackedPackage, WorkerPackage
from tests.support.processes.descriptors import open_under
from tests.support.tools.fixtures import fixture_of


class CountedReader(SystemReader):
    """Counts the readers that are open."""

    def __init__(self, system: CountedSystem, inner: SystemReader) -> None:
        self._system = system
        self._inner = inner
        system.opened += 1
        system.open += 1

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        return self._inner.read(offsets, chunk_messages, chunk_bytes)

    def close(self) -> None:
        self._inner.close()
        self._system.open -= 1


class CountedSystem(LocalSystem):
    """A local system that counts its readers."""

    opened = 0
    open = 0

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def reader(self) -> SystemReader:  # type: ignore[override]
        return CountedReader(self, super().reader())


class PositionedSystem(CountedSystem):
    """One whose readers go forward only, as a consumer that fetches ahead."""

    readers_seek = False


@pytest.fixture(params=[CountedSystem, PositionedSystem])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CountedSystem]:
    made = request.param("local", str(tmp_path / "streams"))
    with closing(made.admin()) as admin:
        admin.create_stream("in", 1)
    yield made
    assert made.open == 0, "a reader was left open"


readers = fixture_of(lambda system: InputReaders({"local": system}))


def ssp(partition: int = 0) -> SystemStreamPartition:
    return SystemStreamPartition("local", "in", partition)


def record(number: int) -> RawRecord:
    return (number, b"%d" % (number % 3), b"%d" % number)


def widen(system: LocalSystem, partitions: int) -> None:
    with closing(system.admin()) as admin:
        admin.delete_stream("in")
        admin.create_stream("in", partitions)


def append(system: LocalSystem, first: int, count: int, partition: int = 0) -> None:
    with closing(system.writer(None)) as writer:
        writer.append(ssp(partition), [record(n) for n in range(first, first + count)])


def whole(start: int, end: int, partition: int = 0) -> Portion:
    return Portion(OffsetRange(ssp(partition), start, end), end - start)


def values(readers: InputReaders, start: int, end: int, partition: int = 0, task: int = 0) -> list[bytes | None]:
    with closing(readers.read(whole(start, end, partition), task)) as chunks:
        return [message[3] for chunk in chunks for message in chunk]


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, end)]


def test_a_reader_is_opened_once_for_many_batches(system: CountedSystem, readers: InputReaders) -> None:
    append(system, 0, 3000)
    for start in range(0, 3000, 3):
        assert values(readers, start, start + 3) == numbers(start, start + 3)
    assert (system.opened, system.open) == (1, 1)


def test_files_stay_open_between_batches_and_are_few(system: CountedSystem, readers: InputReaders) -> None:
    widen(system, 70)
    for partition in range(70):
        append(system, 0, 2, partition)
    root = Path(system.root)
    for round_ in range(2):
        for partition in range(70):
            assert values(readers, round_, round_ + 1, partition) == numbers(round_, round_ + 1)
        assert len(open_under(root)) == system.open == 64
    readers.close()
    assert open_under(root) == set()


def test_a_batch_that_was_rewound_reads_the_same_again(system: CountedSystem, readers: InputReaders) -> None:
    append(system, 0, 30)
    for start, end in ((0, 10), (10, 20), (0, 10), (5, 25), (25, 25), (25, 30), (0, 30)):
        assert values(readers, start, end) == numbers(start, end)
    assert system.open == 1
    assert system.opened == (4 if isinstance(system, PositionedSystem) else 1)


def test_tasks_that_read_one_partition_keep_their_positions(system: CountedSystem, readers: InputReaders) -> None:
    append(system, 0, 20)
    for start in range(0, 20, 5):
        for task in (0, 1):
            assert values(readers, start, start + 5, task=task) == numbers(start, start + 5)
    assert system.opened == (2 if isinstance(system, PositionedSystem) else 1)


def test_a_portion_ends_with_its_last_message_and_the_next_follows(
    system: CountedSystem, readers: InputReaders
) -> None:
    append(system, 0, 20_000)
    start = 0
    for messages in (1, 5000, 4096, 4097):
        with closing(readers.read(Portion(OffsetRange(ssp(), start, 20_000), messages), 0)) as chunks:
            found = [message[3] for chunk in chunks for message in chunk]
        assert found == numbers(start, start + messages)
        start += messages
    assert values(readers, start, 20_000) == numbers(start, 20_000)
    assert system.opened == 1


def test_a_read_that_was_left_is_not_continued(system: CountedSystem, readers: InputReaders) -> None:
    append(system, 0, 20_000)
    with closing(readers.read(whole(0, 20_000), 0)) as left:
        next(left)
        assert values(readers, 0, 5) == numbers(0, 5), "the reader in use is left alone"
    assert (system.opened, system.open) == (2, 1)


def test_readers_that_are_closed_during_a_read_leave_nothing_open(system: CountedSystem, readers: InputReaders) -> None:
    append(system, 0, 20_000)
    chunks = readers.read(whole(0, 20_000), 0)
    next(chunks)
    readers.close()
    assert system.open == 1
    list(chunks)
    assert system.open == 0


def test_a_reader_that_failed_is_not_used_again(system: CountedSystem, readers: InputReaders) -> None:
    append(system, 0, 5)
    assert values(readers, 0, 5) == numbers(0, 5)
    with pytest.raises(NotFoundError, match="upcoming one is 5"):
        values(readers, 5, 6)
    assert system.open == 0
    append(system, 5, 1)
    assert values(readers, 5, 6) == numbers(5, 6)


def test_a_stream_of_the_same_name_is_another_one(system: CountedSystem, readers: InputReaders) -> None:
    append(system, 0, 10)
    assert values(readers, 0, 5) == numbers(0, 5)
    with closing(system.admin()) as admin:
        admin.delete_stream("in")
        with pytest.raises(NotFoundError, match="does not exist"):
            values(readers, 5, 10)
        admin.create_stream("in", 1)
        append(system, 100, 10)
        assert values(readers, 0, 5) == numbers(100, 105)
        admin.delete_stream("in")
        admin.create_stream("in", 1)
    append(system, 200, 10)
    assert values(readers, 5, 10) == numbers(205, 210)


def test_messages_that_a_compaction_took_are_missed(system: CountedSystem, readers: InputReaders) -> None:
    append(system, 0, 10)
    assert values(readers, 0, 3) == numbers(0, 3)
    with closing(system.admin()) as admin:
        admin.compact(OffsetRange(ssp(), 0, 10), WriterIdentity("compactor", 1))
    with pytest.raises(NotFoundError, match="expected offset 3"):
        values(readers, 3, 10)
    assert values(readers, 7, 10) == numbers(7, 10)


class Client:
    """Counts how often it was opened, which is once for each instance of the operator."""

    opened = 0

    async def __aenter__(self) -> Client:
        Client.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def same(self, value: bytes) -> bytes:
        return value


async def ask(value: bytes, client: Client) -> bytes:
    return await client.same(value)


def stages_of(system: LocalSystem, tasks: int) -> OuterStages:
    app = ps.StreamApplication("a")
    passed = app.input("local.in", value=ps.Bytes()).map_async(ask, client=Client)
    passed.send_to(app.output("local.out", value=ps.Bytes()))
    topology = plan_topology(app.graph())
    assert not topology.container_stages
    return OuterStages(topology, RuntimeSettings("a", tasks, {"local.out": 1}), {"local": system})


def read(stages: OuterStages, epoch: int, ends: dict[int, tuple[int, int]], progress: ReadProgress) -> Iterator[Packet]:
    portions = {task: [(0, whole(*end, task))] for task, end in ends.items()}
    return stages.read(epoch, Batch(1, 1, 0), portions, progress)


def test_readers_and_tasks_of_another_epoch_are_closed(system: CountedSystem) -> None:
    append(system, 0, 30)
    before, opened = Client.opened, []
    with closing(stages_of(system, 1)) as stages:
        for number, epoch in enumerate([1, 1, 2, 2, 1]):
            list(read(stages, epoch, {0: (number, number + 1)}, ReadProgress()))
            assert system.open == 1
            opened.append(Client.opened - before)
    assert system.opened == 3
    assert opened == [1, 1, 2, 2, 3]


def test_a_worker_closes_the_stages_of_another_package(system: CountedSystem) -> None:
    append(system, 0, 1)
    first, other = stages_of(system, 1), PackedPackage("other", cloudpickle.dumps(WorkerPackage(None, None, {})))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_outer", {"first": first})
        assert worker.outer_stages(PackedPackage("first", b"")) is first
        list(read(first, 1, {0: (0, 1)}, ReadProgress()))
        assert worker.outer_stages(other) is not first
        assert worker.outer_stages(other) is worker.outer_stages(other)
    assert system.open == 0


def test_all_tasks_of_a_lane_come_in_one_batch_and_each_is_a_sign_of_progress(system: CountedSystem) -> None:
    widen(system, 10)
    for task in range(10):
        append(system, 0, 1, task)
    ends = dict.fromkeys(range(10), (0, 1))
    progress, signs = ReadProgress(), set()
    with closing(stages_of(system, 10)) as stages:

        def watched() -> Iterator[Packet]:
            for packet in read(stages, 1, ends, progress):
                signs.add(progress())
                yield packet

        (batch,) = worker.alive_packets(watched(), progress)
    kinds, messages = (batch.column(name).to_pylist() for name in ("kind", "messages"))
    assert [count for kind, count in zip(kinds, messages, strict=True) if kind == PacketKind.DATA] == [10]
    assert len(signs) >= 10


RECORD: RawRecord = (1, b"key", b"value")


def output(partition: int, stream: str = "out") -> SystemStreamPartition:
    return SystemStreamPartition("local", stream, partition)


def test_written_files_stay_open_and_are_few(tmp_path: Path) -> None:
    system = LocalSystem("local", str(tmp_path))
    admin = system.admin()
    admin.create_stream("out", 100)
    writers = OutputWriters({"local": system}, WriterIdentity("job", 1))
    writers.append({output(partition): [RECORD] for partition in range(2)})
    first = open_under(tmp_path)
    assert len(first) == 2
    writers.append({output(partition): [RECORD] for partition in range(2)})
    assert open_under(tmp_path) == first
    writers.append({output(partition): [RECORD] for partition in range(100)})
    assert len(open_under(tmp_path)) <= 64
    writers.close()
    assert open_under(tmp_path) == set()
    assert [ends.upcoming for ends in admin.offsets("out").values()] == [3, 3] + 98 * [1]
    admin.close()


def test_a_kept_writer_is_fenced_and_follows_a_stream_that_was_replaced(tmp_path: Path) -> None:
    system = LocalSystem("local", str(tmp_path))
    admin = system.admin()
    admin.create_stream("out", 2)
    writers = OutputWriters({"local": system}, WriterIdentity("job", 1))
    both = {output(0): [RECORD], output(1): [RECORD]}
    writers.append(both)
    (tmp_path / "out").rename(tmp_path / "aside")
    admin.create_stream("out", 2)
    writers.append(both)
    assert [ends.upcoming for ends in admin.offsets("out").values()] == [1, 1]
    admin.fence("out", WriterIdentity("job", 2))
    with pytest.raises(FencedError):
        writers.append(both)
    assert [ends.upcoming for ends in admin.offsets("out").values()] == [1, 1]
    writers.close()
    admin.close()
