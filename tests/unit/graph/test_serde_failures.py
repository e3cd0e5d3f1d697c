"""The defaults of serdes fit together, and where an object does not fit, everything is named."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
import pytest

import penstock as ps
from penstock.graph.serdes import declared, fitting, input_place
from penstock.testing import TestRunner
from tests.support.oracles.tracebacks import frames_of_penstock


class Count(ps.StreamTask):
    """Counts by key."""

    def __init__(self, emits: bool = True) -> None:
        self.emits = emits

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        count = (self.counts.get(envelope.key) or 0) + 1
        self.counts.put(envelope.key, count)
        if self.emits:
            collector.emit(key=envelope.key, value=count)
        collector.send("sent", key=envelope.key, value=count)


class Keep(ps.StreamTask):
    """Stores one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def init(self, context: ps.TaskContext) -> None:
        self.store = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.store[envelope.key] = self.value


def test_the_simplest_keyed_job_needs_no_serde() -> None:
    """Input keys were bytes before, and keys of stores and outputs text."""
    for make in (ps.StreamApplication, lambda name: ps.TaskApplication(name, partial(Count, emits=False))):
        app = make("a")
        app.store("counts")
        app.output("local.sent")
        if isinstance(app, ps.StreamApplication):
            app.input("local.in").process(Count, stores=["counts"]).send_to(app.output("local.out"))
        else:
            app.input("local.in")
        runner = TestRunner(app).input("local.in", [("a", 1), ("b", 2), ("a", 3)]).run()
        assert runner.store("counts") == {"a": 2, "b": 1}
        assert sorted((m.key, m.value) for m in runner.output("local.sent")) == [("a", 1), ("a", 2), ("b", 1)]


def test_a_key_that_nobody_looks_at_is_not_decoded() -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in").filter(lambda v: v["n"]).map(lambda v: v).flat_map(lambda v: [v, v])
    stream.partition_by(lambda v: "k").send_to(app.output("m.out"))
    app.input("m.same").send_to(app.output("m.copy"))
    runner = TestRunner(app, partitions=1)
    for name, value in (("in", b'{"n":1}'), ("same", b"1")):
        runner._home.streams.systems["m"].writer(None).append(
            ps.SystemStreamPartition("m", name, 0), [(0, b"\xff", value)]
        )
    with pytest.raises(ps.UserCodeError, match=r"input `m.same`: the key b'\\xff' cannot be read by ps.String\(\)"):
        runner.run()  # the output has a serde of its own, so its key is decoded and written again
    app = ps.StreamApplication("a")
    app.input("m.in").flat_map(lambda v: [v, v]).partition_by(lambda v: "k").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1)
    runner._home.streams.systems["m"].writer(None).append(ps.SystemStreamPartition("m", "in", 0), [(0, b"\xff", b"1")])
    assert [m.key for m in runner.run().output("m.out")] == ["k", "k"]


class Calls(ps.StreamTask):
    """Does one thing with its store."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def init(self, context: ps.TaskContext) -> None:
        self.store = context.store("s")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.call(self.store, envelope.key)


class Celsius(ps.Serde[float]):
    """One of a user's own."""

    def to_bytes(self, obj: float) -> bytes:
        return f"{obj + 0.5}C".encode()

    def from_bytes(self, data: bytes) -> float:
        return float(data[:-1])


def reason(call: Any, key: ps.Serde[Any] | None = None, value: ps.Serde[Any] | None = None) -> str:
    app = ps.StreamApplication("a")
    app.store("s", key=key, value=value)
    app.input("m.in", key=ps.Bytes()).process(lambda: Calls(call), stores=["s"])
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(app, partitions=1).input("m.in", [(b"N1", 1)]).run()
    return caught.value.failed.reason


@pytest.mark.parametrize(
    ("call", "key", "value", "text"),
    [
        (
            lambda s, k: s.get(k), None, None,
            ("store `s`: the key b'N1' is bytes, but keys are declared as ps.String(). ps.String() takes str; for this "
            'key, declare app.store("s", key=ps.Bytes())'),
        ),
        (
            lambda s, k: s.put(5, 1), None, None,
            ("store `s`: the key 5 is an int, but keys are declared as ps.String(). ps.String() takes str; for this "
            'key, declare app.store("s", key=ps.Long())'),
        ),
        (
            lambda s, k: s.put(("u", 5), 1), None, None,
            ("store `s`: the key ('u', 5) is a tuple, but keys are declared as ps.String(). ps.String() takes str; for "
            'this key, declare app.store("s", key=ps.Tuple(ps.String(), ps.Long()))'),
        ),
        (
            lambda s, k: s.delete("\ud800"), None, None,
            ("store `s`: the key '\\ud800' cannot be written: the text '\\ud800' has no UTF-8: its character 1 is half "
            "of a surrogate pair, U+D800."),
        ),
        (
            lambda s, k: s.put(2**31, 1), ps.Integer(), None,
            ("store `s`: the key 2147483648 cannot be written by ps.Integer(): it is out of range. ps.Integer() takes "
            "int from -2^31 to 2^31 - 1; for this key, declare"),
        ),
        (
            lambda s, k: s.put((1 << 64,), 1), ps.Tuple(ps.Long()), None,
            "store `s`: the key (18446744073709551616,) cannot be written by ps.Tuple(ps.Long()): a field is out of r",
        ),
        (
            lambda s, k: s.put("a", {1}), None, None,
            ("store `s`: the value {1} of key 'a' cannot be written by ps.Json(): TypeError: Type is not JSON "
            "serializable: set. ps.Json() takes dict with str keys, list, str, int of 64 bits, finite "
            "float, bool, None"),
        ),
        (
            lambda s, k: s.put("a", 1 << 64), None, None,
            ("store `s`: the value 18446744073709551616 of key 'a' cannot be written by ps.Json(): TypeError: Integer "
            "exceeds 64-bit range. ps.Json() takes"),
        ),
        (
            lambda s, k: s.put("a", "x"), None, ps.Long(),
            ("store `s`: the value 'x' of key 'a' is a str, but values are declared as ps.Long(). ps.Long() takes int "
            'from -2^63 to 2^63 - 1; for this value, declare app.store("s", value=ps.String())'),
        ),
        (
            lambda s, k: s.put("a", "x"), None, Celsius(),
            "store `s`: the value 'x' of key 'a' cannot be written by Celsius: TypeError: can only concatenate str",
        ),
        (
            lambda s, k: s.range("a", "b"), ps.Tuple(ps.String(), ps.Long()), None,
            ("store `s`: the key 'a' is a str, but keys are declared as ps.Tuple(ps.String(), ps.Long()). ps.Tuple("
            "ps.String(), ps.Long()) takes tuple with its number of fields"),
        ),
    ],
)  # fmt: skip
def test_a_store_names_everything(call: Any, key: ps.Serde[Any], value: ps.Serde[Any], text: str) -> None:
    assert (
        reason(call, key, value)
        .encode("utf-8", "backslashreplace")
        .decode()
        .startswith(f"SerdeError: {text}".encode("utf-8", "backslashreplace").decode())
    )


def test_what_a_store_holds_in_another_form() -> None:
    app = ps.StreamApplication("a")
    app.store("s", value=ps.Json())
    app.input("m.in").process(lambda: Calls(lambda s, k: [s.get(k), list(s.all())]), stores=["s"])
    for put, text in (
        ({b"N1": b"{"}, "the value b'{' of key 'N1' cannot be read by ps.Json(): DecodeError: "),
        ({b"\xff": b"1"}, r"the key b'\xff' cannot be read by ps.String(): UnicodeDecodeError: "),
    ):
        runner = TestRunner(app, partitions=1).input("m.in", [("N1", 1)])
        runner._engine(0, "s").apply(put)
        with pytest.raises(ps.UserCodeError) as caught:
            runner.run()
        assert caught.value.failed.reason.startswith(f"SerdeError: store `s`: {text}")
        assert "declare the serde they were written with, as app.store(" in caught.value.failed.reason


def test_an_input_names_everything() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").sink(lambda *_: None)
    with pytest.raises(
        ps.SerdeError, match=r"input `m.in`: the key 5 is an int.*declare app\.input\(.m\.in., key=ps\.Long"
    ):
        TestRunner(app).input("m.in", [(5, 1)])
    for message, text in (
        ((0, b"\xff", b"1"), r"the key b'\xff' cannot be read by ps.String(): UnicodeDecodeError: "),
        ((0, b"k", b"text"), "the value b'text' cannot be read by ps.Json(): DecodeError: "),
    ):
        runner = TestRunner(app, partitions=1)
        runner._home.streams.systems["m"].writer(None).append(ps.SystemStreamPartition("m", "in", 0), [message])
        with pytest.raises(ps.UserCodeError) as caught:
            runner.run()
        assert caught.value.failed.reason.startswith(f"SerdeError: input `m.in`: {text}")
        part = "value=ps.String()" if message[1] == b"k" else "key=ps.Bytes()"
        assert f'as app.input("m.in", {part})' in caught.value.failed.reason


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda app: app.input("m.in").partition_by(lambda v: 5).sink(lambda *_: None),
            ("messages of operator `partition_by-1` to `sink-1`: the key 5 is an int, but keys are declared as "
            "ps.String(). ps.String() takes str; for this key, declare .partition_by(..., key=ps.Long())"),
        ),
        (
            lambda app: app.input("m.in").partition_by(lambda v: 5, key=ps.Long()).send_to(app.output("m.out")),
            ("output `m.out`: the key 5 is an int, but keys are declared as ps.String(). ps.String() takes str; for "
            'this key, declare app.output("m.out", key=ps.Long())'),
        ),
        (
            lambda app: app.input("m.in").map(lambda v: {v}).partition_by(lambda v: "k").sink(lambda *_: None),
            "messages of operator `partition_by-1` to `sink-1`: the value {1} cannot be written by ps.Json(): ",
        ),
        (
            lambda app: app.input("m.in").sink(lambda e, c, _: c.send("out", key=b"k", value=1)) or app.output("m.out"),
            "",
        ),
    ],
)  # fmt: skip
def test_streams_name_everything(build: Any, text: str) -> None:
    app = ps.StreamApplication("a")
    build(app)
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(app, partitions=1).input("m.in", [1]).run()
    failed = caught.value.failed
    assert failed.reason.startswith(f"SerdeError: {text}")
    assert frames_of_penstock(failed.traceback) == []


def test_a_key_of_the_wrong_type_begins_with_what_penstock_says() -> None:
    """Not with CPython's "descriptor 'encode' for 'str' objects doesn't apply"; an error of the application's own serde
    is shown."""

    def call(store: Any, key: int) -> None:
        store.put(key if isinstance(serde, ps.String) else "text", 1)

    for serde, own in ((ps.String(), False), (Celsius(), True)):
        app = ps.StreamApplication("a")
        app.store("s", key=serde, value=ps.Json())
        app.input("m.in", key=ps.Long()).process(partial(Calls, call), stores=["s"])
        with pytest.raises(ps.UserCodeError) as caught:
            TestRunner(app, partitions=1).input("m.in", [(5, 1)]).run()
        assert ("direct cause" in caught.value.failed.traceback) is own
        assert "descriptor" not in caught.value.failed.traceback


@pytest.mark.parametrize(
    ("serde", "text"),
    [
        (ps.Long(), "ps.Long()"), (ps.Long().for_store_keys(), "ps.Long()"), (ps.SamzaLong(), "ps.SamzaLong()"),
        (ps.Double().for_keys(), "ps.Double()"), (ps.Json().for_keys(), "ps.Json()"), (Celsius(), "Celsius"),
        (ps.Tuple(ps.String(), ps.Integer()), "ps.Tuple(ps.String(), ps.Integer())"),
    ],
)  # fmt: skip
def test_how_a_serde_is_declared(serde: ps.Serde[Any], text: str) -> None:
    assert declared(serde) == text


@pytest.mark.parametrize("obj", ["a", b"a", 1, -(2**63), 1.5, True, {"a": 1}, [1], ("a", 1), ("a", (1.5, "x"))])
@pytest.mark.parametrize("part", ["key", "value"])
def test_what_is_proposed_takes_the_object(obj: Any, part: Any) -> None:
    proposed = fitting(obj, part)
    assert proposed is not None
    serde: ps.Serde[Any] = eval(proposed, {"ps": ps})
    if part == "key":
        serde = serde.for_store_keys()
        assert serde.from_bytes(serde.to_bytes(obj)) == obj
    assert serde.to_bytes(obj)


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (
            lambda app: app.store("a", key=ps.String),
            ("store `a`: the serde of the keys is the class ps.String, not an instance of it: write "
            'app.store("a", key=ps.String())'),
        ),
        (
            lambda app: app.store("counts", value="json"),
            ("store `counts`: the serde of the values is 'json', which is not a serde: write "
            'app.store("counts", value=ps.Json())'),
        ),
        (lambda app: app.store("a", key=""), 'is \'\', which is not a serde: write app.store("a", key=ps.String())'),
        (lambda app: app.store("a", value=Celsius), 'the class Celsius, not an instance of it: write app.store("a", v'),
        (lambda app: app.store("a", key=ps.Tuple), 'write app.store("a", key=ps.Tuple(ps.String(), ps.Long()))'),
        (
            lambda app: app.input("m.in", key=int),
            ("input `m.in`: the serde of the keys is <class 'int'>, which is not a serde: write "
            'app.input("m.in", key=ps.Long())'),
        ),
        (lambda app: app.input("m.in", value=ps.Json), 'write app.input("m.in", value=ps.Json())'),
        (lambda app: app.output("m.out", key=ps.Long), 'write app.output("m.out", key=ps.Long())'),
        (lambda app: app.output("m.out", value=5), "output `m.out`: the serde of the values is 5, which is"),
        (
            lambda app: app.input("m.in").partition_by(str, key=ps.Long),
            ("operator `partition_by-1`: the serde of the keys is the class ps.Long, not an instance of it: write "
            ".partition_by(..., key=ps.Long())"),
        ),
        (lambda app: app.input("m.in").partition_by(str, value=ps.Json, id="p"), "operator `p`: the serde of the v"),
        (
            lambda app: app.input("m.in").process(Count, value=ps.Json),
            ("operator `process-1`: the serde of the values is the class ps.Json, not an instance of it: write "
            ".process(..., value=ps.Json())"),
        ),
        (lambda app: app.input("m.in").process(Count, key="long"), "write .process(..., key=ps.Long())"),
        (
            lambda app: app.store("a", key=ps.Tuple(ps.String(), cast("Any", ps.Long))),
            "ps.Tuple(): the serde of field 1 is the class ps.Long, not an instance of it: write ps.Long()",
        ),
    ],
)  # fmt: skip
def test_what_is_no_serde_is_refused_where_it_is_declared(declare: Any, text: str) -> None:
    with pytest.raises(ps.ConfigError) as caught:
        declare(ps.StreamApplication("a"))
    assert text in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), {"delays": [1.5, float("-inf")]}])
def test_a_store_refuses_nan_in_json_and_says_so(value: Any) -> None:
    app = ps.TaskApplication("a", partial(Keep, value))
    app.store("counts")
    app.input("m.in")
    with pytest.raises(ps.UserCodeError, match=r"store `counts`: the value .* of key 'k' .*JSON has no (nan|-inf)"):
        TestRunner(app).input("m.in", [("k", 1)]).run()


def test_one_bad_message_is_not_the_wrong_serde() -> None:
    """Nothing says whether the other messages can be read."""
    data = b'{"n": 2'
    with pytest.raises(ValueError, match="truncated") as raised:
        ps.Json().from_bytes(data)
    text = str(input_place("m.in").unreadable("value", ps.Json(), data, raised.value))
    assert "If this is the only such value, correct what wrote it; otherwise declare the serde they were" in text


@pytest.mark.parametrize("value", [np.float64(3), np.int64(3), {"a": [np.float32(3)]}])
def test_numbers_of_numpy_become_pythons(value: object) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").map(lambda _: value).send_to(app.output("m.out"))
    with pytest.raises(ps.UserCodeError) as raised:
        TestRunner(app, partitions=1).input("m.in", [1]).run()
    assert "NumPy's numbers become Python's with .item()" in raised.value.failed.reason
    assert "ps.Double()" not in raised.value.failed.reason


def test_an_error_that_has_no_text_is_named() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    said = str(input_place("m.in").unwritable("value", ps.Json(), 1, MuteError()))
    assert "the value 1 cannot be written by ps.Json(): MuteError (its text cannot be shown" in said
