"""join: which messages meet, when those without a partner are emitted, and what is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

import penstock as ps
from penstock.checkpoint.record import Claim
from penstock.runtime import joins
from penstock.runtime.operators import join
from penstock.start.layout import check_layout, store_layout
from penstock.testing import ChangedMessageError, TestRunner
from tests.support.oracles.stage_batches import LATE, OUT, Message, StageBatches
from tests.support.stores.checkpoints import checkpoint

Stream = ps.MessageStream[Any]


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def stage(*, late: bool = False, **options: Any) -> StageBatches:
    """`left` and `right` are inputs."""
    app = ps.StreamApplication("a")
    late_to = app.output(LATE)
    left, right = app.input("m.left", id="left"), app.input("m.right", id="right")
    joined = left.join(right, pair, **{"within_ms": 10, "id": "j", **options, "late_to": late_to if late else None})
    joined.send_to(app.output(OUT))
    return StageBatches(app, "j")


def left(value: Any, time: int, key: str | None = "k") -> Message:
    return Message(key, value, time, "left")


def right(value: Any, time: int, key: str | None = "k") -> Message:
    return Message(key, value, time, "right")


def out(sent: dict[str, list[tuple[Any, Any, int]]]) -> list[tuple[Any, int]]:
    return [(value, time) for _, value, time in sent.get(OUT, [])]


def test_both_bounds_belong_to_the_span() -> None:
    job = stage(within_ms=(5, 20))
    times = (94, 95, 100, 120, 121)
    assert out(job.run([left("l", 100), *(right(time, time) for time in times)])) == [
        (["l", 95], 100),
        (["l", 100], 100),
        (["l", 120], 120),
    ]
    assert out(job.run([left("m", 126)])) == [(["m", 121], 126)]
    job.close()


def test_a_result_has_the_later_time_whichever_message_came_first() -> None:
    job = stage()
    job.run([left("l", 100)])
    assert out(job.run([right("r", 95)])) == [(["l", "r"], 100)]
    assert out(job.run([right("s", 105)])) == [(["l", "s"], 105)]
    job.close()


def test_the_partners_of_a_message_come_by_their_time_and_then_as_they_came() -> None:
    job = stage()
    job.run([right(1, 108), right(2, 95), right(3, 108)])
    job.run([right(4, 101), right(5, 95)])
    assert [value[1] for value, _ in out(job.run([left("l", 100)]))] == [2, 5, 4, 1, 3]
    job.close()


def test_operators_behind_see_the_time_of_the_result() -> None:
    class Times(ps.StreamTask):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            collector.emit(key=envelope.key, value=[envelope.value, envelope.timestamp, str(envelope.ssp)])

    app = ps.StreamApplication("a")
    app.input("m.left", id="left").join(app.input("m.right"), pair, within_ms=10).process(Times).send_to(
        app.output("m.out")
    )
    runner = TestRunner(app, partitions=1).input("m.left", [("k", "l")], timestamp=108).run()
    runner.input("m.right", [("k", "r")], timestamp=100).run()
    assert [m.value for m in runner.output("m.out")] == [[["l", "r"], 108, "m.right.0"]]
    runner.close()


@pytest.mark.parametrize(
    ("kind", "alone"),
    [
        ("left", [(["l", None], 120)]),
        ("right", [([None, "r"], 305)]),
        ("outer", [(["l", None], 120), ([None, "r"], 305)]),
    ],
)
def test_messages_without_a_partner_wait_for_the_last_moment(kind: Any, alone: list[Any]) -> None:
    job = stage(within_ms=(5, 20), kind=kind)
    assert job.run([left("l", 100), right("r", 300), left("m", 500), right("s", 500)], 120)[OUT] == [
        ("k", ["m", "s"], 500)
    ]
    job.restart()
    assert out(job.run([], 121)) == alone[: kind != "right"]
    assert out(job.run([], 305)) == []
    assert out(job.run([], 306)) == alone[kind != "right" :]
    assert job.run([], 1000) == {}
    assert job.entries("j.join") == {}
    job.close()


def test_messages_without_a_partner_come_by_time_and_key() -> None:
    job = stage(kind="left", within_ms=0)
    job.run([left(key, time, key) for time in (30, 10, 20) for key in "cab"])
    sent = job.run([], 100)
    assert [(time, key) for key, _, time in sent[OUT]] == [(time, key) for time in (10, 20, 30) for key in "abc"]
    job.close()


def test_a_partner_that_comes_in_the_last_moment_counts() -> None:
    job = stage(kind="outer")
    job.run([left("l", 100)], 110)
    assert out(job.run([right("r", 110)], 200)) == [(["l", "r"], 110)]
    assert job.entries("j.join") == {}
    job.close()


def test_late_messages_go_to_their_output() -> None:
    job = stage(late=True, kind="outer")
    job.run([right("r", 95)], 100)
    sent = job.run([left("l", 99), left("m", 100)], 100)
    assert sent == {LATE: [("k", "l", 99)], OUT: [("k", ["m", "r"], 100)]}
    job.close()


def test_late_messages_without_an_output_are_counted() -> None:
    app = ps.StreamApplication("a")
    app.input("m.left").join(app.input("m.right"), pair, within_ms=10, kind="outer", id="j").send_to(
        app.output("m.out")
    )
    runner = TestRunner(app, partitions=1).advance_watermark(100)
    runner.input("m.left", [("k", "l")], timestamp=99).end_inputs()
    assert runner.output("m.out") == []
    metrics = runner._running().board.metrics.snapshot()
    assert metrics.total("late-dropped", group="operator.j") == 1
    runner.close()


def test_a_message_without_a_key_joins_nothing() -> None:
    job = stage(kind="left")
    sent = job.run([left("l", 100, None), right("r", 100, None)])
    assert sent == {OUT: [(None, ["l", None], 110)]}
    assert job.entries("j.join") == {}
    job.close()


def test_a_value_of_none_is_a_value() -> None:
    job = stage(kind="outer")
    assert out(job.run([left(None, 100), right("r", 100)], 500)) == [([None, "r"], 100)]
    job.close()


def test_values_are_as_their_serde_reads_them_whichever_came_first() -> None:
    app = ps.StreamApplication("a")
    seen: list[Any] = []
    sides = [app.input(f"m.{name}").partition_by(str, key=ps.String()).map(lambda n: (n, n)) for name in "ab"]

    def note(*both: Any) -> None:
        seen.append(both)

    sides[0].map(lambda n: n).join(sides[1].map(lambda n: n), note, within_ms=5)
    runner = TestRunner(app, partitions=1).input("m.a", [1]).run().input("m.b", [1]).run().input("m.a", [1]).run()
    assert seen == [([1, 1], [1, 1])] * 2
    runner.close()


# The newest of each key.


def test_a_message_that_is_replaced_is_emitted_at_once_if_it_had_no_partner() -> None:
    job = stage(kind="left", keep="newest")
    assert out(job.run([left(1, 100)])) == []
    assert out(job.run([left(2, 105), left(3, 103)])) == [([3, None], 113), ([1, None], 110)], "3 is older than 2"
    assert out(job.run([right("r", 110)])) == [([2, "r"], 110)]
    assert out(job.run([left(4, 105)])) == [([4, "r"], 110)], "of equal times the one that came last"
    assert out(job.run([right("s", 111)])) == [([4, "s"], 111)]
    assert out(job.run([], 1000)) == []
    assert job.entries("j.join") == {}
    job.close()


# The same stream on both sides, and streams made of one.


def both_ways(make: Callable[[Stream], tuple[Stream, Stream]], *, shuffled: bool) -> list[Any]:
    app = ps.StreamApplication("a")
    events: Stream = app.input("m.in", timestamp=lambda event: int(event[1]))
    if shuffled:
        events = events.partition_by(lambda event: event[0])
    sides = make(events)
    sides[0].join(sides[1], lambda one, two: [one[1], two[1]], within_ms=(0, 10), id="j").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=2)
    for batch in ([("k", 1), ("k", 5)], [("k", 11), ("l", 11)], [("k", 12)]):
        runner.input("m.in", [(key, [key, time]) for key, time in batch]).run()
    runner.end_inputs()
    assert runner.store("j.join") == {}
    found = sorted(m.value for m in runner.output("m.out"))
    runner.close()
    return found


TIMES = {"k": [1, 5, 11, 12], "l": [11]}
SELF_JOINED = sorted([t, u] for times in TIMES.values() for t in times for u in times if t <= u <= t + 10)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_with_itself(shuffled: bool) -> None:
    assert both_ways(lambda events: (events, events), shuffled=shuffled) == SELF_JOINED


@pytest.mark.parametrize("shuffled", [False, True])
def test_two_streams_made_of_one(shuffled: bool) -> None:
    def halves(events: Stream) -> tuple[Stream, Stream]:
        return events.filter(lambda event: event[1] < 10), events.map(lambda event: event)

    assert both_ways(halves, shuffled=shuffled) == [each for each in SELF_JOINED if each[0] < 10]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_with_what_was_made_of_it(shuffled: bool) -> None:
    assert both_ways(lambda events: (events, events.map(list)), shuffled=shuffled) == SELF_JOINED
    assert both_ways(lambda events: (events.map(list), events), shuffled=shuffled) == SELF_JOINED


# Joins and windows in a row.


@pytest.mark.parametrize("apart", [False, True])
def test_joins_and_windows_in_a_row(apart: bool) -> None:
    """Visits and clicks by minute, joined; and the pairs counted by hour: what a join emits at the end of its input is
    in time for the window behind it."""
    app = ps.StreamApplication("a")
    sides = []
    for name in ("visits", "clicks"):
        counted = (
            app.input(f"m.{name}", timestamp=int)
            .partition_by(lambda time: "all")
            .window(ps.Windows.tumbling(60, aggregates={"n": ps.Count()}), id=name)
            .map(lambda pane: pane.message["n"])
        )
        sides.append(counted.partition_by(lambda n: "all") if apart else counted)
    minutes = sides[0].join(sides[1], pair, within_ms=0, kind="outer", id="minutes")
    minutes.send_to(app.output("m.minutes"))
    again = minutes.join(sides[0], lambda both, n: [*both, n], within_ms=0, id="again")
    hours = again.partition_by(lambda n: "all") if apart else again
    hours.window(ps.Windows.tumbling(3600), id="hours").map(lambda pane: pane.message).send_to(app.output("m.hours"))
    runner = TestRunner(app, partitions=2)
    for visit, click in [([5, 70, 80], [10, 75]), ([130, 190], [185]), ([], [4000])]:
        runner.input("m.visits", visit, partition=0).input("m.clicks", click, partition=0).run()
    runner.end_inputs()
    found = sorted((m.timestamp, m.value) for m in runner.output("m.minutes"))
    assert found == [(59, [1, 1]), (119, [2, 1]), (179, [1, None]), (239, [1, 1]), (4019, [None, 1])]
    (hour,) = runner.output("m.hours")
    assert (hour.timestamp, sorted(hour.value, key=repr)) == (3599, [[1, 1, 1], [1, 1, 1], [1, None, 1], [2, 1, 2]])
    assert all(runner.store(name) == {} for name in ("minutes.join", "again.join", "hours.window"))
    runner.close()


# What an attempt holds, and how much it does.


def test_cells_of_many_messages_are_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "_PIECE_BYTES", 50)
    job = stage(kind="outer")
    for n in range(20):
        assert job.run([left("left" * 5 + str(n), 100 + n % 3)]) == {}
    assert sum(entry[:1] == b"p" for entry in job.entries("j.join")) >= 9
    job.restart()
    found = out(job.run([right("r", 100), right("s", 104, "other")]))
    assert [int(value[0][20:]) for value, _ in found] == sorted(range(20), key=lambda n: n % 3)
    job.run([], 2**63 - 1, control="end-of-stream")
    assert job.entries("j.join") == {}
    job.close()


def test_a_message_reads_nothing_of_the_many_on_its_own_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "_PIECE_BYTES", 50)
    read: list[bytes] = []
    piece = joins._piece

    def noted(name: bytes, letter: bytes, number: int) -> bytes:
        read.append(name)
        return piece(name, letter, number)

    monkeypatch.setattr(joins, "_piece", noted)
    job = stage()
    for n in range(20):
        job.run([left("left" * 5, 100), left(str(n), 100)])
    pieces = len(read)
    assert pieces == sum(entry[:1] == b"p" for entry in job.entries("j.join")) >= 10, "each was written, and none read"
    assert len(out(job.run([right("r", 100)]))) == 40
    assert len(read) >= 2 * pieces
    job.close()


def test_very_many_messages_without_a_partner_are_emitted_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_AT_MOST", 4)
    monkeypatch.setattr(joins, "_AT_ONCE", 2)
    app = ps.StreamApplication("a")
    policy = ps.BoundedOutOfOrderness(500)
    inputs = [app.input(f"m.{name}", watermark=policy) for name in ("left", "right")]
    pairs = inputs[0].join(inputs[1], pair, within_ms=5, kind="left", id="j")
    counted = pairs.window(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}), id="w")
    counted.map(lambda pane: [pane.window.start_ms, pane.message["n"]]).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=2)
    for n in range(50):
        runner.input("m.left", [(f"k{n % 7}", n)], timestamp=n)
    runner.run()
    for name in ("left", "right"):
        for partition in range(2):
            runner.input(f"m.{name}", [(None, 0)], partition=partition, timestamp=1000)
    runner.run()
    counts: dict[int, int] = {}
    for message in runner.output("m.out"):
        counts[message.value[0]] = counts.get(message.value[0], 0) + message.value[1]
    assert {start: n for start, n in counts.items() if start < 100} == {
        start: 5 if start in (0, 50) else 10 for start in range(0, 60, 10)
    }, "none was late"
    assert not any(entry[:1] == b"u" for entry in runner.store("j.join"))
    assert runner._running().loop.boundary.batch > 10
    runner.end_inputs()
    assert runner.store("j.join") == {}
    runner.close()


def test_held_cells_and_results_are_stored_and_passed_on_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_HELD_ENTRIES", 3)
    monkeypatch.setattr(join, "_HELD_RESULTS", 2)
    job = stage()
    found = out(job.run([left(n, n, f"k{n % 5}") for n in range(10)] + [right(n, n, f"k{n % 5}") for n in range(10)]))
    assert sorted(value for value, _ in found) == sorted([n, m] for n in range(10) for m in (n, (n + 5) % 10))
    job.close()


# Failures.


@pytest.mark.parametrize("keep", ["all", "newest"])
@pytest.mark.parametrize("at", ["function", "behind"])
def test_nothing_of_a_failed_message_stays(keep: Any, at: str) -> None:
    app = ps.StreamApplication("a")

    def fails(value: list[Any]) -> list[Any]:
        if "bad" in value:
            raise ValueError("bad")
        return value

    joined = app.input("m.left").join(
        app.input("m.right"), lambda *both: fails(pair(*both)) if at == "function" else pair(*both),
        within_ms=10, kind="outer", keep=keep, id="j",
    )  # fmt: skip
    joined.map(fails).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    runner.input("m.left", [("k", "l")], timestamp=100).run()
    before = runner.store("j.join")
    runner.input("m.right", [("k", "bad")], timestamp=95).run()
    assert runner.dead_letters == 1
    assert runner.store("j.join") == before
    runner.input("m.right", [("k", "r")], timestamp=101).run()
    runner.input("m.left", [("alone", "bad"), ("alone", "fine")], timestamp=102).run()
    runner.end_inputs()
    assert runner.dead_letters == 2
    said = [orjson.loads(message.value) for message in runner.output("m.dead")]
    assert [each["reason"] for each in said] == ["ValueError: bad"] * 2
    assert [orjson.loads(each["value"]) for each in said] == ["bad"] * 2
    assert [each["operator"] for each in said] == ["j" if at == "function" else "map-1"] * 2
    assert sorted(m.value for m in runner.output("m.out")) == [["fine", None], ["l", "r"]]
    assert runner.store("j.join") == {}
    runner.close()


@pytest.mark.parametrize("keep", ["all", "newest"])
def test_what_a_message_replaced_is_emitted_once_although_an_operator_behind_fails(keep: Any) -> None:
    """The message is undone: the one that it replaced waits for a partner as before."""

    class Fails(ps.StreamTask):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            if envelope.value == "bad":
                raise ValueError("bad")

    app = ps.StreamApplication("a")
    ours, theirs = (app.input(f"m.{side}").partition_by(lambda _: "k", id=side) for side in ("left", "right"))
    ours.join(theirs, pair, within_ms=5, kind="outer", keep=keep, id="j").send_to(app.output(OUT))
    ours.process(Fails, id="behind")
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    runner.input("m.left", [("k", "first")], timestamp=1).input("m.left", [("k", "bad")], timestamp=2).run()
    assert len(runner.output("m.dead")) == 1
    assert [(each.value, each.timestamp) for each in runner.end_inputs().output(OUT)] == [(["first", None], 6)]
    runner.close()


def test_what_a_message_replaced_is_emitted_once_with_dead_letters() -> None:
    app = ps.StreamApplication("a")
    ours, theirs = app.input("m.left"), app.input("m.right")
    ours.join(theirs, pair, within_ms=5, kind="outer", keep="newest", id="j").send_to(app.output(OUT))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    for time, value in ((1, "first"), (2, None), (3, None), (3, "last")):
        runner.input("m.left", [("k", value)], timestamp=time)
    found = [(each.value, each.timestamp) for each in runner.run().output(OUT)]
    assert found == [(["first", None], 6), ([None, None], 7), ([None, None], 8)]
    assert [(each.value, each.timestamp) for each in runner.end_inputs().output(OUT)] == [*found, (["last", None], 8)]
    assert runner.store("j.join") == {}
    runner.close()


def test_a_failure_names_the_message_that_led_to_it() -> None:
    app = ps.StreamApplication("a")
    joined = app.input("m.left").join(app.input("m.right"), pair, within_ms=10)
    joined.map(lambda both: 1 // both[1]).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.left", [("k", 1)], timestamp=100).run()
    runner.input("m.right", [("k", 2), ("k", 0), ("k", 3)], timestamp=95)
    with pytest.raises(ps.UserCodeError, match="ZeroDivisionError") as caught:
        runner.run()
    failed = caught.value.failed
    assert (failed.stream, failed.offset, failed.key, failed.operator) == ("m.right", 1, "k", "map-1")
    runner.close()


def test_a_function_that_changes_a_value_is_found() -> None:
    app = ps.StreamApplication("a")
    app.input("m.left").join(app.input("m.right"), lambda one, two: one.append(two), within_ms=10)
    runner = TestRunner(app, partitions=1).input("m.left", [("k", [])]).input("m.right", [("k", 1)])
    with pytest.raises(ps.UserCodeError, match=ChangedMessageError.__name__):
        runner.run()
    runner.close()


def test_what_the_bytes_of_a_join_depend_on() -> None:
    def layout(value: ps.Serde[Any] | None = None, key: ps.Serde[Any] | None = None, **options: Any) -> str:
        app = ps.StreamApplication("a")
        sides = [app.input(f"m.{name}", key=key, value=value) for name in "ab"]
        sides[0].join(sides[1], pair, **{"within_ms": (5, 10), "id": "j", **options})
        return store_layout(app.graph())["j.join"]

    same = [layout(), layout(kind="inner", keep="all"), layout(value=ps.Json())]
    others = [
        layout(within_ms=(10, 5)),
        layout(within_ms=(5, 11)),
        layout(kind="left"),
        layout(keep="newest"),
        layout(value=ps.String()),
        layout(key=ps.Long()),
    ]
    assert len(set(same)) == 1
    assert len({*same, *others}) == 1 + len(others)
    assert all(len(each.split(" ")) == 3 for each in others)
    record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores={"j.join": same[0]})
    check_layout(record, {"j.join": same[1]}, 0)
    for now in others:
        with pytest.raises(
            ps.IncompatibleError,
            match=r"the join of operator `j` is in checkpoint 1-0(, but is defined| as `within=5,10:inner)",
        ):
            check_layout(record, {"j.join": now}, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"within_ms": -1}, "within_ms is a duration .*, not -1"),
        ({"within_ms": (1, 2, 3)}, "give one duration, or two"),
        ({"within_ms": 1.5}, "within_ms is a duration .*, not 1.5"),
        ({"kind": "full"}, 'a join is "inner", "left", "right" or "outer"'),
        ({"keep": "last"}, 'a join keeps "all" messages of the span, or the "newest" of each key'),
        ({"late_to": ps.SystemStream("m", "x")}, r"output `m.x` is not declared"),
        ({"value": str}, "serde"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], said: str) -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(ps.ConfigError, match=said):
        app.input("m.a").join(app.input("m.b"), pair, **{"within_ms": 5, **options})


def test_what_cannot_be_joined() -> None:
    app, other = ps.StreamApplication("a"), ps.StreamApplication("b")
    here = app.input("m.a")
    with pytest.raises(ps.ConfigError, match="a stream of the same application"):
        here.join(other.input("m.b"), pair, within_ms=5)
    with pytest.raises(ps.ConfigError, match="a function of a left and a right value"):
        here.join(here, None, within_ms=5)  # type: ignore[arg-type]
