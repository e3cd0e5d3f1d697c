"""Event times: stage 0 extracts them, they travel with what a message leads to, and the highest is reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion, PortionRead
from penstock.graph.topology import plan_topology
from penstock.runtime.messages.packet import PacketKind
from penstock.runtime.reports import Report
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.source import InputReaders, run_source
from penstock.system.base import OffsetRange
from penstock.system.memory import MemoryReader, MemorySystem
from penstock.testing import TestRunner

SSP = SystemStreamPartition("m", "in", 0)
NOW = 1_000_000


def time_of(value: Any) -> int:
    time: int = value["t"]
    return time


def read_of(
    app: ps.StreamApplication, values: list[Any], *, max_ahead_ms: int | None = 100, own: int = 5
) -> PortionRead:
    """Stage 0's report of what it read of these messages, whose own timestamp is `own`."""
    report = report_of(app, values, max_ahead_ms=max_ahead_ms, own=own)
    assert (report.failed, report.error) == (None, None)
    (read,) = report.inputs.values()
    return read


def report_of(app: ps.StreamApplication, values: list[Any], *, max_ahead_ms: int | None = 100, own: int = 5) -> Report:
    """Stage 0's report of these messages."""
    system = MemorySystem("m")
    system.admin().create_stream("in", 1)
    system.writer(None).append(SSP, [(own, None, orjson.dumps(value)) for value in values])
    settings = RuntimeSettings("a", 1, {"m.out": 1}, max_ahead_ms=max_ahead_ms)
    portion = Portion(OffsetRange(SSP, 0, len(values)), len(values))
    readers = InputReaders({"m": system})
    *_, last = run_source(plan_topology(app.graph()), settings, Batch(1, 1, NOW), 0, [(0, portion)], readers)
    readers.close()
    assert last.kind is PacketKind.REPORT
    assert last.payload is not None
    return Report.decode(last.payload)


def app_of(**given: Any) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    app.input("m.in", **given).send_to(app.output("m.out"))
    return app


def test_the_highest_event_time_is_reported() -> None:
    assert read_of(app_of(timestamp=time_of), [{"t": 3}, {"t": 9}, {"t": 7}]).event_time_ms == 9


def test_without_a_function_it_is_the_messages_own_timestamp() -> None:
    read = read_of(app_of(watermark=ps.Ascending()), [{"t": 3}, {"t": 9}])
    assert (read.event_time_ms, read.ahead, read.messages) == (5, 0, 2)


def test_an_application_that_uses_no_time_reports_none() -> None:
    assert not app_of().graph().uses_time
    assert read_of(app_of(), [{"t": 3}], max_ahead_ms=None).event_time_ms is None


def test_a_message_far_in_the_future_is_left_out_of_the_maximum() -> None:
    """One by one: the others count. A clock that is a little ahead is none."""
    read = read_of(app_of(timestamp=time_of), [{"t": 3}, {"t": NOW + 101}, {"t": NOW + 100}, {"t": 2**61}])
    assert (read.event_time_ms, read.ahead) == (NOW + 100, 2)
    read = read_of(app_of(timestamp=time_of), [{"t": NOW + 101}])
    assert (read.event_time_ms, read.ahead, read.messages) == (None, 1, 1)


def test_portions_of_many_messages_keep_their_highest() -> None:
    values = [{"t": n % 5000} for n in range(20_000)]
    assert read_of(app_of(timestamp=time_of), values).event_time_ms == 4999


def test_event_times_travel_through_exchanges_and_become_the_timestamps_of_outputs() -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in", timestamp=time_of)
    stream = stream.partition_by(lambda v: v["k"]).map(lambda v: v["t"]).partition_by(str)
    stream.send_to(app.output("m.out"))
    runner = TestRunner(app).input("m.in", [{"k": f"k{n}", "t": 7 * n} for n in range(6000)], timestamp=3).run()
    assert sorted((m.value, m.timestamp) for m in runner.output("m.out")) == [(7 * n, 7 * n) for n in range(6000)]


def test_operators_of_the_first_stage_see_the_event_time() -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in", timestamp=time_of).map(lambda m: [m.timestamp, m.value["t"]], envelope=True)
    stream.send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [{"t": 8}, {"t": 9}]).run()
    assert [(m.value, m.timestamp) for m in runner.output("m.out")] == [([8, 8], 8), ([9, 9], 9)]


def test_a_channel_of_raw_messages_has_event_times_too() -> None:
    """Its messages are sent on as the bytes that were read, and decoded for the function alone."""
    app = ps.TaskApplication("a", Copy)
    app.input("m.in", timestamp=time_of)
    app.output("m.out")
    runner = TestRunner(app, partitions=1).input("m.in", [{"t": 8}, {"t": 9}]).run()
    assert [(m.value, m.timestamp) for m in runner.output("m.out")] == [(8, 8), (9, 9)]


class Copy(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.send("m.out", value=envelope.timestamp)


def test_any_integer_is_an_event_time() -> None:
    assert read_of(app_of(timestamp=lambda v: np.int64(v["t"])), [{"t": -9}]).event_time_ms == -9


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "TypeError: the event time is None: expected epoch milliseconds, an int"),
        (True, "TypeError: the event time is True: expected"),
        (1.5, "TypeError: the event time is 1.5: expected"),
        (2**62 + 1, "ValueError: the event time is 4611686018427387905: epoch milliseconds are at most"),
        ("raise", "KeyError: 't'"),
    ],
)
def test_a_function_that_fails_ends_the_run(found: Any, reason: str) -> None:
    app = ps.StreamApplication("a")

    def fails(value: Any) -> Any:
        return value["t"] if found == "raise" else found

    stream = app.input("m.in", timestamp=fails, id="reports")
    stream.send_to(app.output("m.out"))
    with pytest.raises(ps.UserCodeError) as raised:
        TestRunner(app, partitions=1).input("m.in", [{}]).run()
    assert reason in str(raised.value)
    assert "in operator `reports`, at stream `m.in` partition 0 offset 0" in str(raised.value)


def test_a_message_without_an_event_time_is_a_dead_letter_and_moves_no_watermark() -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in", timestamp=time_of, id="reports")
    stream.partition_by(lambda v: "k").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    runner.input("m.in", [{"t": 1}, {"other": 2}, {"t": 3}], timestamp=77).run()
    assert [(m.value, m.timestamp) for m in runner.output("m.out")] == [({"t": 1}, 1), ({"t": 3}, 3)]
    (letter,) = runner.output("m.dead")
    assert orjson.loads(letter.value)["reason"] == "KeyError: 't'"
    assert letter.timestamp == 77, "its own"


def test_a_function_that_changes_the_value_is_found_by_the_runner() -> None:
    app = app_of(timestamp=lambda v: v.pop("t"))
    with pytest.raises(ps.UserCodeError, match="ChangedMessageError: operator `input-1` changed the value"):
        TestRunner(app, partitions=1).input("m.in", [{"t": 1}]).run()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"timestamp": "t"}, "input `m.in`: timestamp is a function of the value, not 't'"),
        ({"watermark": 5000}, r"input `m.in`: watermark is a policy such as BoundedOutOfOrderness\(5_000\), not 5000"),
    ],
)
def test_what_is_no_function_or_policy_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ps.ConfigError, match=message):
        app_of(**given)
    task = ps.TaskApplication("a", Copy)
    with pytest.raises(ps.ConfigError, match=message):
        task.input("m.in", **given)


@pytest.mark.parametrize("delay", [-1, 1.5, True])
def test_a_delay_is_milliseconds(delay: Any) -> None:
    with pytest.raises(ps.ConfigError, match="max_delay_ms is"):
        ps.BoundedOutOfOrderness(delay)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("time", [None, "now", 1 << 64])
def test_a_reader_without_timestamps_is_reported(monkeypatch: pytest.MonkeyPatch, time: Any, *, timed: bool) -> None:
    """It is reported with and without event time in the application, unless a function gives the event time."""
    read = MemoryReader.read

    def without_time(*args: Any) -> Any:
        for messages in read(*args):
            yield [(offset, time if offset == 1 else own, key, value) for offset, own, key, value, *_ in messages]

    monkeypatch.setattr(MemoryReader, "read", without_time)
    error = report_of(app_of(), [{"t": 1}, {"t": 2}], max_ahead_ms=100 if timed else None).error
    assert error is not None
    assert error[0] == "ConfigError"
    assert f"offset 1 of `m.in.0` has the timestamp {time!r}: the reader of the system `m` must" in error[1]
    assert read_of(app_of(timestamp=time_of), [{"t": 1}, {"t": 2}]).event_time_ms == 2
