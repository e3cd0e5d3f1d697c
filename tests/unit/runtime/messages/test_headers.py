"""Headers of messages: through operators, exchanges, stores of output, dead letters and side inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.messages import headers_of, headers_size, pack_headers, unpack_headers
from penstock.runtime.messages.stored import decode_dead_letter
from penstock.testing import TestRunner

TRACE: dict[str, bytes | str] = {"trace": b"7f", "tenant": "north"}
PAIRS = (("trace", b"7f"), ("tenant", b"north"))
Kept = list[tuple[Any, tuple[tuple[str, bytes | None], ...]]]


def kept(runner: TestRunner, stream: str = "local.out") -> Kept:
    return [(message.value, message.headers) for message in runner.output(stream)]


class Marks(ps.StreamTask):
    """Sends each message on: as it is, with other headers, and without any."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key, value = envelope.key, envelope.value
        collector.emit(key=key, value=[value, "as it is"])
        collector.emit(key=key, value=[value, "others"], headers=[("n", str(value)), ("n", None)])
        collector.emit(key=key, value=[value, "none"], headers={})
        collector.send("side", key=key, value=value, headers={**dict(envelope.headers), "of": b"side"})


def test_every_operator_keeps_the_headers_of_the_message_it_is_given() -> None:
    app = ps.StreamApplication("kept")
    found = app.input("local.in").map(lambda n: n + 1).filter(lambda n: n % 2 == 0).flat_map(lambda n: [n, -n])
    found.partition_by(lambda n: str(abs(n))).map(lambda n: n * 10).send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=3).input("local.in", range(6), headers=TRACE).input("local.in", range(6, 12))
    expected = [(sign * (n + 1) * 10, PAIRS if n < 6 else ()) for n in range(12) if n % 2 for sign in (1, -1)]
    assert sorted(kept(runner.run())) == sorted(expected)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_task_gives_other_headers(shuffled: bool) -> None:
    app = ps.StreamApplication("given")
    app.output("local.side")
    source = app.input("local.in")
    source = source.partition_by(lambda n: str(n % 3)) if shuffled else source
    source.process(Marks).map(lambda each: each).send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=2).input("local.in", [1, 2], headers=TRACE).input("local.in", [3]).run()
    expected: Kept = []
    for value, own in ((1, PAIRS), (2, PAIRS), (3, ())):
        others = (("n", str(value).encode()), ("n", None))
        expected += [([value, "as it is"], own), ([value, "others"], others), ([value, "none"], ())]
    assert sorted(kept(runner), key=repr) == sorted(expected, key=repr)
    sent = [(1, (*PAIRS, ("of", b"side"))), (2, (*PAIRS, ("of", b"side"))), (3, (("of", b"side"),))]
    assert sorted(kept(runner, "local.side")) == sent


def test_the_event_time_of_a_message_with_other_headers_is_counted_once() -> None:
    app = ps.StreamApplication("timed")
    app.output("local.side")
    source = app.input("local.in", timestamp=lambda n: n)
    source.process(Marks).send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1).input("local.in", [5, 9]).run()
    assert {message.timestamp for message in runner.output("local.side")} == {5, 9}
    assert [message.timestamp for message in runner.output("local.out")] == [5, 5, 5, 9, 9, 9]


def test_what_a_timer_emits_has_the_headers_that_it_gives() -> None:
    class Later(ps.StreamTask):
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            self.context.schedule(envelope.key, self.context.batch_time_ms + 1000, domain="processing")

        def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
            collector.emit(key=timer.key, value="none")
            collector.emit(key=timer.key, value="some", headers={"at": str(timer.time_ms)})

    app = ps.StreamApplication("later")
    app.input("local.in").process(Later, timers=ps.String()).send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1).input("local.in", [("a", 1), ("b", 1)], headers=TRACE).run()
    at = str(runner.advance_time(1000).output("local.out")[0].timestamp).encode()
    assert kept(runner) == [("none", ()), ("some", (("at", at),))] * 2


def test_windows_have_none_and_a_running_aggregate_those_of_its_message() -> None:
    app = ps.StreamApplication("windows")
    source = app.input("local.in", timestamp=lambda n: n)
    whole = source.window(ps.Windows.tumbling("1s", aggregates={"n": ps.Count()}))
    whole.map(lambda pane: pane.message["n"]).send_to(app.output("local.out"))
    running = source.window(ps.Windows.sliding("1s", emit="each", aggregates={"n": ps.Count()}))
    running.map(lambda pane: pane.message["n"]).send_to(app.output("local.each"))
    runner = TestRunner(app, partitions=1).input("local.in", [("a", 5), ("a", 6)], headers=TRACE).run()
    runner.advance_watermark(5000)
    assert [message.headers for message in runner.output("local.out")] == [()]
    assert kept(runner, "local.each") == [(1, PAIRS), (2, PAIRS)]


def test_the_result_of_a_join_has_those_of_the_message_that_completes_it() -> None:
    app = ps.StreamApplication("pairs")
    left, right = app.input("local.left"), app.input("local.right")
    left.join(right, lambda a, b: [a, b], within_ms="1min").send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1).input("local.left", [("k", 1)], headers={"side": "left"}, timestamp=9).run()
    runner.input("local.right", [("k", 2)], headers={"side": "right"}, timestamp=5).run()
    assert kept(runner) == [([1, 2], (("side", b"right"),))]


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_outputs_have_them_after_a_crash(guarantee: str) -> None:
    app = ps.StreamApplication("crash")
    app.output("local.side")
    app.input("local.in").partition_by(lambda n: str(n % 3)).process(Marks, id="marks").send_to(app.output("local.out"))
    config = {f"streams.local.{name}.output.guarantee": guarantee for name in ("out", "side")}
    runner = TestRunner(app, partitions=2, config=config)
    runner.input("local.in", range(4), headers=TRACE).run(batch_messages=1).commit()
    runner.input("local.in", range(4, 8)).run(batch_messages=1).crash().restore().run().commit()
    found = kept(runner, "local.side")
    expected = [(n, (*(PAIRS if n < 4 else ()), ("of", b"side"))) for n in range(8)]
    if guarantee == "exactly-once":
        assert sorted(found) == expected
    else:
        assert sorted(set(found)) == expected


def test_a_durable_stream_keeps_them() -> None:
    app = ps.StreamApplication("durable")
    through = app.input("local.in").partition_by(lambda n: str(n % 3), through="local.between")
    through.map(lambda m: [m.value, m.header("tenant")], envelope=True).map(str).send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=2).input("local.in", [1, 2], headers=TRACE).input("local.in", [3]).run()
    expected = [("[1, b'north']", PAIRS), ("[2, b'north']", PAIRS), ("[3, None]", ())]
    assert sorted(kept(runner)) == expected


def test_a_dead_letter_has_those_of_its_message() -> None:
    app = ps.StreamApplication("dead")
    app.input("local.in").map(lambda n: 1 // n).send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1, dead_letter="local.dead")
    runner.input("local.in", [1, 0], headers=[*PAIRS, ("raw", b"\xff"), ("null", None)]).input("local.in", [0]).run()
    letters = [decode_dead_letter(message.value) for message in runner.output("local.dead")]
    assert [letter.headers for letter in letters] == [(*PAIRS, ("raw", b"\xff"), ("null", None)), ()]
    assert [message.headers for message in runner.output("local.dead")] == [letter.headers for letter in letters]


def test_a_message_that_fails_behind_other_headers_is_named_by_its_place() -> None:
    def fail(each: list[Any]) -> Any:
        if each[1] == "others":
            raise ValueError("not these")
        return each

    app = ps.StreamApplication("place")
    app.output("local.side")
    app.input("local.in").process(Marks).map(fail).send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1, dead_letter="local.dead").input("local.in", [4, 5], headers=TRACE).run()
    letters = [decode_dead_letter(message.value) for message in runner.output("local.dead")]
    assert [(letter.offset, letter.value, letter.headers) for letter in letters] == [(0, b"4", PAIRS), (1, b"5", PAIRS)]
    assert kept(runner) == kept(runner, "local.side") == []


def test_the_processor_of_a_side_input_sees_them() -> None:
    def entry(envelope: Any, store: Any) -> Iterator[tuple[Any, Any]]:
        yield envelope.key, [envelope.value, envelope.header("tenant").decode()]

    app = ps.StreamApplication("sides")
    names = app.table("names", side_inputs=["local.names"], processor=entry)
    app.input("local.in").join_table(names, lambda n, name: name).send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1).side_input("local.names", [("a", 1)], headers=TRACE)
    assert kept(runner.input("local.in", [("a", 1)]).run()) == [([1, "north"], ())]


def test_rows_in_columns_keep_them() -> None:
    schema = pa.schema({"n": pa.int64(), "k": pa.string()})
    app = ps.StreamApplication("columns")
    source = app.input("local.in", value=ps.Columns(schema)).filter(ps.col("n") != 2)
    moved = source.partition_by(ps.col("k"))
    moved.send_to(app.output("local.out", value=ps.Columns(schema)))
    runner = TestRunner(app, partitions=2)
    runner.input("local.in", [{"n": n, "k": f"k{n % 3}"} for n in range(4)], headers=TRACE)
    runner.input("local.in", [{"n": 9, "k": "k9"}]).run()
    found = [(value["n"], headers) for value, headers in kept(runner)]
    assert sorted(found) == [(0, PAIRS), (1, PAIRS), (3, PAIRS), (9, ())]


class Typed(ps.Serde[Any]):
    """Bytes whose type is in a header."""

    reads_headers = True

    def to_bytes(self, obj: Any) -> bytes:
        return str(obj).encode()

    def from_bytes(self, data: bytes) -> Any:
        return data.decode()

    def from_message(self, data: bytes, headers: Any) -> Any:
        return int(data) if ("type", b"int") in headers else self.from_bytes(data)


def test_a_serde_sees_them_wherever_a_message_is_read() -> None:
    app = ps.StreamApplication("typed")
    names = app.table("names", key=ps.Bytes(), side_inputs=[ps.SideInput("local.names", key=ps.Bytes(), value=Typed())])
    source = app.input("local.in", key=ps.Bytes(), value=Typed()).filter(lambda value: value != 0)
    moved = source.partition_by(lambda value: b"k", key=ps.Bytes(), value=Typed())
    moved.join_table(names, lambda value, name: [value, name]).send_to(app.output("local.out", key=ps.Bytes()))
    runner = TestRunner(app, partitions=2, dead_letter="local.dead")
    runner.side_input("local.names", [(b"k", 5)], headers={"type": "int"})
    runner.input("local.in", [7, None, 8], headers={"type": "int"}).input("local.in", [9])
    runner.input("local.in", ["no"], headers={"type": "int"}).run()
    typed = (("type", b"int"),)
    expected: Kept = [(["9", 5], ()), ([7, 5], typed), ([8, 5], typed), ([None, 5], typed)]
    assert sorted(kept(runner), key=repr) == expected
    (letter,) = [decode_dead_letter(message.value) for message in runner.output("local.dead")]
    assert letter.value == b"no"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "a mapping from name to value"),
        ({"n": 5}, "not 'n': 5"),
        ([("n",)], "a mapping from name to value"),
        ({5: b"n"}, "not 5: b'n'"),
        ({"penstock.timestamp": b"1"}, "Penstock's own"),
    ],
)
def test_headers_that_are_none(given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        headers_of(given)


def test_headers_as_bytes() -> None:
    headers = headers_of([("é", "ü"), ("", b""), ("null", None), ("é", bytes(range(256)))])
    assert unpack_headers(pack_headers(headers)) == headers
    assert headers_size((("é", b"ab"), ("null", None))) == 7


def test_an_output_message_compares_with_its_headers() -> None:
    app = ps.StreamApplication("copy")
    app.input("local.in").send_to(app.output("local.out"))
    (message,) = TestRunner(app, partitions=1).input("local.in", [1], headers=TRACE).run().output("local.out")
    assert message != replace(message, headers=())
