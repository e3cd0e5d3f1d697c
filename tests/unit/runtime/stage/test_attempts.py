"""Sources, attempts and the task instance: what counts as complete, and what a discarded attempt takes with it."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.errors import ContainerLostError
from penstock.graph.topology import plan_topology
from penstock.runtime.messages.packet import MESSAGE_SCHEMA, Packet, PacketKind, encode_messages
from penstock.runtime.messages.sources import DiscardedAttemptError, Sources
from penstock.runtime.messages.trailers import EndedAttempt, mark_of, trailers
from penstock.runtime.reports import Report
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.attempt import PacketAttempt, new_token
from penstock.runtime.stage.source import InputReaders, run_source
from penstock.runtime.stage.task_instance import TaskInstance
from penstock.state.engines.memory import MemoryEngine
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem
from tests.support.streams.trailers import trailer as trailer_of

BATCH = Batch(1, 1, 0)
SOURCE = (0, 0)


def data(seq: int, token: str = "t", task: int = 0, messages: int = 2) -> Packet:
    return Packet(0, 1, PacketKind.DATA, 0, task, token, 0, -1, seq, messages, b"")


def trailer(packets: int, messages: int, token: str = "t", task: int = 0, *, failed: bool = False) -> Packet:
    return trailer_of((0, task), packets, messages, token=token, failed=failed)


def sources(*tasks: int) -> Sources:
    return Sources(frozenset((0, task) for task in tasks or (0,)))


def feed(target: Sources, *packets: Packet) -> list[int]:
    return [ready.seq for packet in packets for ready in target.accept(packet)]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_packets_come_out_in_sequence_whatever_order_they_come_in(order: tuple[int, ...]) -> None:
    packets = [data(0), data(1), data(2), trailer(3, 6)]
    target = sources()
    assert feed(target, *(packets[i] for i in order)) == [0, 1, 2]
    target.check_complete()
    assert target.marks() == {0: mark_of(0, [(0, "t")])}


def test_sources_do_not_wait_for_each_other() -> None:
    target = sources(0, 1)
    assert feed(target, data(0), data(1, task=1, token="u"), data(0, task=1, token="u"), data(1)) == [0, 0, 1, 1]
    feed(target, trailer(2, 4), trailer(2, 4, task=1, token="u"))
    target.check_complete()
    assert target.marks() == {0: mark_of(0, [(1, "u"), (0, "t")])}


@pytest.mark.parametrize(
    ("packets", "said"),
    [
        ([data(0), data(0)], "packet 0 came twice"),
        ([data(1), data(1)], "packet 1 came twice"),
        ([data(0), data(1), data(0)], "packet 0 came twice"),
        ([data(0), data(1, token="u")], "two attempts of stage 0 task 0 came: t and u"),
        ([data(0), trailer(1, 2, token="u")], "two attempts"),
        ([trailer(0, 0), trailer(0, 0)], "a second trailer"),
        ([trailer(0, 0), trailer(0, 0, failed=True)], "a second trailer"),
        ([data(0, task=5)], "rows came from stage 0 task 5, which does not send here"),
        ([trailer(0, 0, task=5)], "a trailer came from stage 0 task 5, which does not send here"),
        ([trailer(1, 2, token="u"), data(0)], "two attempts of stage 0 task 0 came: u and t"),
    ],
)
def test_what_does_not_fit_discards_the_attempt(packets: list[Packet], said: str) -> None:
    with pytest.raises(DiscardedAttemptError, match=said):
        feed(sources(), *packets)


@pytest.mark.parametrize(
    ("packets", "said"),
    [
        ([], r"without the trailer of stage 0 task 0, stage 0 task 1"),
        ([data(0), trailer(1, 2)], r"without the trailer of stage 0 task 1$"),
        ([trailer(1, 2), trailer(0, 0, task=1)], "sent 1 packets with 2 messages, but 0 packets with 0 messages came"),
        ([data(0), trailer(1, 3), trailer(0, 0, task=1)], "with 3 messages, but 1 packets with 2"),
        ([data(0), data(1), trailer(1, 2), trailer(0, 0, task=1)], "sent 1 packets"),
        ([data(0), data(2), trailer(2, 4), trailer(0, 0, task=1)], "but 1 packets with 2"),
        ([data(1), trailer(0, 0), trailer(0, 0, task=1)], "sent 0 packets"),
        ([trailer(0, 0, failed=True)], "without the trailer of stage 0 task 1"),
    ],
)
def test_an_incomplete_input_discards_the_attempt(packets: list[Packet], said: str) -> None:
    target = sources(0, 1)
    feed(target, *packets)
    with pytest.raises(DiscardedAttemptError, match=said):
        target.check_complete()


def test_the_trailers_of_several_attempts() -> None:
    """One for each task; each names all attempts, and has what they sent to this task."""
    app = ps.StreamApplication("a")
    app.input("m.i").partition_by(str).map(str).send_to(app.output("m.o"))
    ended = [EndedAttempt(0, "t", False, {(1, 1): (2, 5)}), EndedAttempt(2, "u", False, {(1, 0): (1, 2)})]
    first, second, third = trailers(plan_topology(app.graph()), 0, 3, ended)
    for packet, packets in ((first, [data(0, "u", 2)]), (third, [])):
        target = sources(0, 2)
        feed(target, *packets, packet)
        target.check_complete()
        assert target.marks() == {0: mark_of(0, [(0, "t"), (2, "u")])}
    target = sources(0, 2)
    feed(target, second)
    with pytest.raises(DiscardedAttemptError, match="stage 0 task 0 sent 2 packets with 5 messages, but 0 packets"):
        target.check_complete()
    assert first.payload == second.payload == third.payload


def test_an_attempt_has_only_its_trailer_of_a_stage_that_is_not_shuffled() -> None:
    app = ps.StreamApplication("a")
    app.store("s")
    app.input("m.i").process(Count, stores=["s"])
    sent = list(trailers(plan_topology(app.graph()), 0, 3, [EndedAttempt(n, "t", n == 2, {}) for n in (0, 2)]))
    assert [packet.dest for packet in sent] == [0, 2]
    for packet, failed in zip(sent, (False, True), strict=True):
        target = sources(packet.dest)
        feed(target, packet)
        target.check_complete()
        assert target.failed is failed


def test_a_failed_source_makes_the_input_complete_but_failed() -> None:
    target = sources()
    feed(target, data(3), trailer(9, 9, failed=True))
    target.check_complete()
    assert target.failed


class Count(ps.StreamTask):
    """Counts in place; `n` stands in the value that is kept in the cache. Fields are counted too, as a cache."""

    events: list[str] = []

    def init(self, context: ps.TaskContext) -> None:
        Count.events.append("init")
        self.store = context.store("counts")
        self.field = 0

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: Any, coordinator: Any) -> None:
        value = self.store.get("k") or {"n": 0}
        value["n"] += envelope.value
        self.field += envelope.value
        self.store.put("k", value)
        collector.emit(value=[value["n"], self.field])

    def close(self) -> None:
        Count.events.append("close")


class Bench:
    """One task of a counting job, and packets for it."""

    def __init__(self) -> None:
        Count.events = []
        app = ps.StreamApplication("a")
        app.store("counts")
        app.input("m.i").process(Count, stores=["counts"]).send_to(app.output("m.o"))
        self.topology = plan_topology(app.graph())
        self.settings = RuntimeSettings("a", 1, {"m.o": 1})
        self.engine = MemoryEngine()
        self.task = TaskInstance(0, self.topology, self.settings, {"counts": self.engine}, 0)
        self.system = MemorySystem("m")
        self.system.admin().create_stream("i", 1)

    def packets(self, *values: int) -> list[Packet]:
        ssp = SystemStreamPartition("m", "i", 0)
        first = self.system.writer(None).append(ssp, [(0, None, str(v).encode()) for v in values])
        ranges = [(0, Portion(OffsetRange(ssp, first, first + len(values)), len(values)))]
        sent = run_source(self.topology, self.settings, BATCH, 0, ranges, InputReaders({"m": self.system}))
        return [p for p in sent if p.stage == 1]

    def attempt(self, packets: list[Packet]) -> PacketAttempt:
        attempt = self.task.start_attempt(1, new_token(), BATCH)
        for packet in packets:
            list(attempt.accept(packet))
        return attempt

    def finished(self, packets: list[Packet]) -> PacketAttempt:
        attempt = self.attempt(packets)
        report = Report.decode(bytes(list(attempt.finish())[-1].payload or b""))
        assert report.failed is None
        self.task.finish_attempt(attempt)
        return attempt

    @property
    def stored(self) -> bytes | None:
        return self.engine.get(b"k")


def test_state_changes_only_at_end_and_end_is_idempotent() -> None:
    bench = Bench()
    attempt = bench.finished(bench.packets(1, 2))
    assert bench.stored is None
    for _ in range(3):
        bench.task.end(1, {1: attempt.token})
        assert bench.stored == b'{"n":3}'
    assert bench.task.take_changes() == {"counts": {b"k": b'{"n":3}'}}
    assert bench.task.take_changes() == {"counts": {}}
    bench.task.end(2, {1: bench.finished(bench.packets(4)).token})
    bench.task.end(3, {1: bench.finished(bench.packets(5)).token})
    assert bench.task.take_changes() == {"counts": {b"k": b'{"n":12}'}}
    assert Count.events == ["init"], "the instance of an applied attempt serves the next batch"


@pytest.mark.parametrize("batch", [-1, 0, 2, 3])
def test_another_batch_is_refused(batch: int) -> None:
    bench = Bench()
    attempt = bench.finished(bench.packets(1))
    with pytest.raises(ContainerLostError, match="its last ended batch is 0"):
        bench.task.end(batch, {1: attempt.token})
    bench.task.end(1, {1: attempt.token})
    assert bench.stored == b'{"n":1}'


def test_an_unknown_token_is_refused_and_nothing_applied() -> None:
    bench = Bench()
    attempt = bench.finished(bench.packets(1))
    for tokens in ({1: "x"}, {2: attempt.token}, {1: attempt.token, 2: "x"}):
        with pytest.raises(ContainerLostError, match="no finished attempt"):
            bench.task.end(1, tokens)
        assert bench.stored is None
    bench.task.end(1, {1: attempt.token})
    with pytest.raises(ContainerLostError, match="last ended batch is 1"):
        bench.task.end(1, {1: "another"})
    assert bench.stored == b'{"n":1}'


def test_a_value_is_changed_in_place_then_the_attempt_is_discarded() -> None:
    bench = Bench()
    bench.task.end(1, {1: bench.finished(bench.packets(1)).token})
    packets = bench.packets(10)
    bench.task.discard_attempt(bench.attempt(packets))
    assert Count.events == ["init", "close"], "the user's task goes with the attempt"
    bench.finished(packets)
    bench.task.drop_attempts()
    assert Count.events == ["init", "close"] * 2
    attempt = bench.finished(packets)
    assert attempt.instance.stores["counts"].get("k") == {"n": 11}
    bench.task.end(2, {1: attempt.token})
    assert bench.stored == b'{"n":11}'
    bench.task.close()
    assert Count.events == ["init", "close"] * 3


def test_of_two_finished_attempts_end_applies_the_one_it_names() -> None:
    for chosen in (0, 1):
        bench = Bench()
        packets = bench.packets(1, 2)
        attempts = [bench.finished(packets), bench.finished(packets)]
        bench.task.end(1, {1: attempts[chosen].token})
        assert bench.stored == b'{"n":3}'
        assert Count.events == ["init", "init", "close"]
        following = bench.finished(bench.packets(5))
        assert following.instance is attempts[chosen].instance
        bench.task.end(2, {1: following.token})
        assert bench.stored == b'{"n":8}'


def test_a_task_whose_end_failed_half_way_does_nothing_more() -> None:
    class Full(MemoryEngine):
        def apply(self, changes: Any) -> None:
            raise OSError("no space left")

    bench = Bench()
    bench.task = TaskInstance(0, bench.topology, bench.settings, {"counts": Full()}, 0)
    attempt = bench.finished(bench.packets(1))
    with pytest.raises(ContainerLostError, match=r"task 0 must be restored.*no space"):
        bench.task.end(1, {1: attempt.token})
    for refused in (
        lambda: bench.task.end(1, {1: attempt.token}),
        lambda: bench.task.take_changes(),
        lambda: bench.task.start_attempt(1, "t", BATCH),
    ):
        with pytest.raises(ContainerLostError, match="no space left"):
            refused()


def test_packets_without_messages_change_nothing() -> None:
    bench = Bench()
    first, _ = bench.packets(1)
    end = trailer(3, 1, first.token)
    nothing = encode_messages(pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA))
    packets = [first._replace(seq=seq, messages=0, payload=nothing) for seq in (0, 2)]
    attempt = bench.finished([packets[0], first._replace(seq=1), packets[1], end])
    bench.task.end(1, {1: attempt.token})
    assert bench.stored == b'{"n":1}'
