"""Tables: what a message sees of the messages before it, whichever operator wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import TestRunner
from tests.support.tools.profiles import examples


class Puts(ps.StreamTask):
    """Writes a table as a store, and passes the message on."""

    def init(self, context: ps.TaskContext) -> None:
        self.table = context.store("t")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.table[envelope.key] = envelope.value
        collector.emit(key=envelope.key, value=envelope.value)


def pair(value: Any, found: Any) -> list[Any]:
    return [value, found]


def values(runner: TestRunner) -> list[Any]:
    return [message.value for message in runner.output("m.out")]


def build(write_and_read: Callable[[ps.MessageStream[Any], ps.Table], ps.MessageStream[Any]]) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    table = app.table("t")
    write_and_read(app.input("m.in"), table).send_to(app.output("m.out"))
    return app


def written_first(stream: ps.MessageStream[Any], table: ps.Table) -> ps.MessageStream[Any]:
    return stream.send_to(table).join_table(table, pair)


def written_by_a_task(stream: ps.MessageStream[Any], table: ps.Table) -> ps.MessageStream[Any]:
    return stream.process(Puts, stores=["t"]).join_table(table, pair)


def written_behind_it(stream: ps.MessageStream[Any], table: ps.Table) -> ps.MessageStream[Any]:
    joined = stream.join_table(table, pair, kind="left")
    joined.map(lambda both: both[0]).send_to(table)
    return joined


def written_behind_another_join(stream: ps.MessageStream[Any], table: ps.Table) -> ps.MessageStream[Any]:
    joined = stream.join_table(table, pair, kind="left").filter(lambda _: True)
    joined.map(lambda both: both[0]).join_table(table, lambda value, _: value, kind="left").send_to(table)
    return joined


@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("build_with", [written_first, written_by_a_task])
def test_a_message_sees_what_it_wrote_itself(build_with: Any, batch: int | None) -> None:
    runner = TestRunner(build(build_with), partitions=1)
    runner.input("m.in", [("k", 1), ("k", 2), ("l", 3), ("k", 4)]).run(batch_messages=batch)
    assert values(runner) == [[1, 1], [2, 2], [3, 3], [4, 4]]


@pytest.mark.parametrize("batch", [None, 1, 2])
@pytest.mark.parametrize("build_with", [written_behind_it, written_behind_another_join])
def test_a_message_sees_what_the_one_before_it_wrote(build_with: Any, batch: int | None) -> None:
    runner = TestRunner(build(build_with), partitions=1)
    runner.input("m.in", [("k", 1), ("k", 2), ("l", 3), ("k", 4)]).run(batch_messages=batch)
    assert values(runner) == [[1, None], [2, 1], [3, None], [4, 2]]


def test_none_deletes_and_an_inner_join_drops() -> None:
    runner = TestRunner(build(written_first), partitions=1)
    runner.input("m.in", [("k", 1), ("k", None), ("l", 3)]).run()
    assert values(runner) == [[1, 1], [3, 3]]
    assert runner.store("t") == {"l": 3}


def test_messages_without_a_key() -> None:
    app = ps.StreamApplication("a")
    table, stream = app.table("t", key=ps.Json()), app.input("m.in", key=ps.Json())
    stream.filter(lambda message: message.key is not None, envelope=True).send_to(table)
    stream.join_table(table, pair, kind="left").merge(stream.join_table(table, pair)).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [1, ("k", 2)]).run()
    assert sorted(values(runner)) == [[1, None], [2, 2], [2, 2]]
    with pytest.raises(ps.UserCodeError, match=r"a message without a key cannot be sent to table `t`. Give it one"):
        TestRunner(build(written_first)).input("m.in", [1]).run()


def test_a_function_that_fails_is_named_with_its_message() -> None:
    app = build(lambda stream, table: stream.send_to(table).join_table(table, lambda a, b: a / (b - 3), id="ratio"))
    runner = TestRunner(app, partitions=1).input("m.in", [("k", 1), ("k", 3), ("k", 5)])
    with pytest.raises(ps.UserCodeError) as caught:
        runner.run()
    assert (caught.value.failed.operator, caught.value.failed.offset) == ("ratio", 1)
    runner = TestRunner(app, partitions=1, dead_letter="m.dead").input("m.in", [("k", 1), ("k", 3)]).run()
    assert runner.dead_letters == 1
    assert runner.store("t") == {"k": 1}, "the write of the message that failed is undone"


def test_a_change_of_the_value_in_place_is_found() -> None:
    app = build(lambda stream, table: stream.send_to(table).join_table(table, lambda a, _: a.append(1)))
    with pytest.raises(ps.UserCodeError, match="operator `join_table-1` changed the value of a message in place"):
        TestRunner(app).input("m.in", [("k", [])]).run()


def test_a_table_of_an_early_stage_is_used_in_a_later_one() -> None:
    app = ps.StreamApplication("a")
    table = app.table("t")
    app.input("m.airlines").send_to(table)
    flights = app.input("m.in").partition_by(lambda each: each[0]).process(Passes).partition_by(lambda each: each[1])
    flights.join_table(table, pair).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=3)
    runner.input("m.airlines", [(f"k{n}", n) for n in range(20)]).run()
    runner.input("m.in", [[f"a{n}", f"k{n}"] for n in range(20)]).run()
    assert sorted(values(runner)) == sorted([[f"a{n}", f"k{n}"], n] for n in range(20))


class Passes(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=envelope.key, value=envelope.value)


def test_what_is_not_a_table_is_refused() -> None:
    app = ps.StreamApplication("a")
    stream, table = app.input("m.in"), ps.StreamApplication("b").table("t")
    with pytest.raises(ps.ConfigError, match=r"join_table\(\): table `t` is of another application"):
        stream.join_table(table, pair)
    with pytest.raises(ps.ConfigError, match=r"send_to\(\): table `t` is of another application"):
        stream.send_to(table)
    with pytest.raises(ps.ConfigError, match=r"join_table\(\) takes a table, which `app.table\(...\)` returns"):
        stream.join_table("t", pair)  # type: ignore[arg-type]
    own = app.table("t")
    with pytest.raises(ps.ConfigError, match="table `t` is declared twice"):
        app.table("t")
    with pytest.raises(ps.ConfigError, match=r'kind is "inner" or "left", not .outer'):
        stream.join_table(own, pair, kind="outer")  # type: ignore[arg-type]
    app.store("s")
    with pytest.raises(ps.ConfigError, match="table `s` is the name of a store in application `a`"):
        app.table("s")


keys = st.sampled_from("abc")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), keys, st.none() | st.integers(0, 9)),
        st.tuples(st.just("read"), keys, st.integers(0, 9)),
        st.tuples(st.sampled_from(["run", "commit", "crash"]), st.just(""), st.none()),
    ),
    max_size=40,
)


@examples(0.2)
@given(steps, st.integers(1, 3), st.booleans())
def test_a_table_is_a_dict(given_steps: list[tuple[str, str, int | None]], partitions: int, through: bool) -> None:
    """Whatever the batches, crashes and task counts: a join sees the table as the batches before left it."""
    app = ps.StreamApplication("a")
    table = app.table("t")
    streams = {name: app.input(f"m.{name}") for name in ("write", "read")}
    if through:
        streams = {name: stream.partition_by(key_of, envelope=True) for name, stream in streams.items()}
    streams["write"].send_to(table)
    streams["read"].join_table(table, pair, kind="left").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=partitions)
    kept: dict[str, int] = {}
    expected: dict[tuple[str, int], Any] = {}
    for number, (kind, key, value) in enumerate(given_steps):
        if kind == "write":
            kept = {each: held for each, held in kept.items() if each != key}
            kept |= {} if value is None else {key: value}
            runner.input("m.write", [(key, value)])
        elif kind == "read":
            runner.run()  # so that the order is known
            expected[key, number] = kept.get(key)
            runner.input("m.read", [(key, number)]).run()
        elif kind == "run":
            runner.run(batch_messages=1)
        elif kind == "commit":
            runner.run().commit()
        else:
            runner.run().commit().crash().restore()
    runner.run()
    assert runner.store("t") == kept
    assert {(m.key, m.value[0]): m.value[1] for m in runner.output("m.out")} == expected
    runner.close()


def key_of(message: ps.IncomingMessageEnvelope) -> Any:
    return message.key


def temporal(kind: Any = "inner", fn: Callable[[Any, Any], Any] = pair) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    table = app.table("t", key=ps.Json(), history_ms=0)
    app.input("m.versions", key=ps.Json()).send_to(table, id="versions")
    reads = app.input("m.in", key=ps.Json())
    reads.join_table(table, fn, kind=kind, as_of=True, id="j").send_to(app.output("m.out", key=ps.Json()))
    return app


def test_a_temporal_join_of_messages_without_a_key_or_a_value() -> None:
    for kind, expected in (("left", [[1, None], [None, None], [2, None], [3, 7]]), ("inner", [[3, 7]])):
        runner = TestRunner(temporal(kind), partitions=1)
        runner.input("m.versions", [("k", 7)], timestamp=5)
        runner.input("m.in", [1], timestamp=1).input("m.in", [("k", None)], timestamp=2)
        runner.input("m.in", [("k", 2)], timestamp=4).input("m.in", [("k", 3)], timestamp=5).end_inputs()
        assert values(runner) == expected


def test_a_temporal_join_that_fails_is_a_dead_letter_with_its_message() -> None:
    app = temporal(fn=lambda value, found: value / found)
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    runner.input("m.versions", [("k", 0), ("l", 2)], timestamp=1)
    runner.input("m.in", [("k", 12), ("l", 12)], timestamp=3).end_inputs()
    assert values(runner) == [6.0]
    (letter,) = [orjson.loads(message.value) for message in runner.output("m.dead")]
    assert (letter["operator"], letter["name"], letter["timestamp"]) == ("j", "join", 3)
    assert letter["value"] == "12"
    assert set(runner.store("j.join")) <= {b"n"}
    runner = TestRunner(app, partitions=1).input("m.versions", [("k", 0)], timestamp=1)
    runner.input("m.in", [("k", 12)], timestamp=3)
    with pytest.raises(ps.UserCodeError, match="operator `j`, at the end of a batch of task 0"):
        runner.end_inputs()


def test_a_table_that_is_not_what_the_join_needs() -> None:
    app = ps.StreamApplication("a")
    stream, plain, dated = app.input("m.in"), app.table("t"), app.table("rates", history_ms=1)
    with pytest.raises(ps.ConfigError, match=r"as_of=True needs the versions of table `t`: declare it with app.table"):
        stream.join_table(plain, pair, as_of=True)
    with pytest.raises(ps.ConfigError, match=r"table `rates` has history .*: join it with as_of=True"):
        stream.join_table(dated, pair)
    with pytest.raises(ps.ConfigError, match="late_to is for as_of=True"):
        stream.join_table(plain, pair, late_to=app.output("m.late"))
    with pytest.raises(ps.ConfigError, match=r"table `rates` has history .* a task cannot keep in order. Write it"):
        stream.process(Puts, stores=["rates"])
    with pytest.raises(ps.ConfigError, match=r"table `u`: history_ms is a duration .*, not -1"):
        app.table("u", history_ms=-1)
    with pytest.raises(ps.ConfigError, match="table `u`: ttl_ms and history_ms exclude each other"):
        app.table("u", history_ms=1, ttl_ms=1)


def test_a_table_with_a_time_to_live() -> None:
    app = ps.StreamApplication("a")
    table = app.table("t", ttl_ms=1000)
    app.input("m.versions").send_to(table)
    app.input("m.in").join_table(table, pair, kind="left").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.versions", [("k", 1)]).run()
    runner.input("m.in", [("k", 2)]).advance_time(999).input("m.in", [("k", 3)]).advance_time(1)
    assert values(runner) == [[2, 1], [3, None]]


def test_a_temporal_join_that_would_wait_for_itself() -> None:
    app = ps.StreamApplication("a")
    table = app.table("t", history_ms=1)
    app.input("m.in").join_table(table, pair, as_of=True, id="j").send_to(table, id="back")
    with pytest.raises(ps.ConfigError, match=r"the temporal join `j` would wait for itself: .* \(`j`, `back`\)"):
        app.graph()
