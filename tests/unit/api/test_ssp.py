"""Names of streams and partitions, and durations in each form, wherever an application gives one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.base.wording import Duration, milliseconds

SYSTEMS = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
STREAMS = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True)


@given(SYSTEMS, STREAMS, st.integers(0, 10**9))
def test_what_is_written_reads_back_dots_and_all(system: str, stream: str, partition: int) -> None:
    name = ps.SystemStream(system, stream)
    assert ps.SystemStream.parse(str(name)) == name
    ssp = ps.SystemStreamPartition(system, stream, partition)
    assert ps.SystemStreamPartition.parse(str(ssp)) == ssp
    assert ssp.system_stream == name


def test_the_first_dot_separates_the_system_the_last_the_partition() -> None:
    assert ps.SystemStream.parse("local.a.b") == ps.SystemStream("local", "a.b")
    assert ps.SystemStreamPartition.parse("local.a.b.7") == ps.SystemStreamPartition("local", "a.b", 7)
    assert ps.SystemStreamPartition.parse("local.1.2.3") == ps.SystemStreamPartition("local", "1.2", 3)


@pytest.mark.parametrize("text", ["", "flights", ".", ".flights", "local."])
def test_bad_streams(text: str) -> None:
    with pytest.raises(ps.ConfigError, match=r"is not of the form `system\.stream`"):
        ps.SystemStream.parse(text)


@pytest.mark.parametrize(
    "text", ["", "a.b", "a.b.", "a.b.x", "a.b.-1", "a.b.+1", "a.b.1 ", "a.b.\u0663", "a.b.1.5x", ".b.1"]
)
def test_bad_partitions(text: str) -> None:
    with pytest.raises(ps.ConfigError, match="is not of the form"):
        ps.SystemStreamPartition.parse(text)


def test_they_are_ordered_by_number_and_hashable() -> None:
    ssps = [ps.SystemStreamPartition("a", "s", n) for n in (10, 9, 2)]
    assert [s.partition for s in sorted(ssps)] == [2, 9, 10]
    assert len({*ssps, *ssps}) == 3


def test_a_stream_is_named_by_a_text() -> None:
    with pytest.raises(ps.ConfigError, match=r"text of the form `system\.stream`, not by 5"):
        ps.SystemStream.parse(5)  # type: ignore[arg-type]


def table(history: Duration) -> Any:
    return ps.StreamApplication("a").table("t", history_ms=history).history_ms


def window(made: ps.Window) -> Any:
    return made.shape, made.allowed_lateness_ms


def stored(ttl: Duration) -> Any:
    app = ps.StreamApplication("a")
    app.store("s", ttl_ms=ttl)
    app.input("m.in").process(ps.StreamTask, stores=["s"])
    return app.graph().stores[0].ttl


def joined(within: Any) -> Any:
    app = ps.StreamApplication("a")
    app.input("m.a").join(app.input("m.b"), lambda a, b: a, within_ms=within)
    return app.graph().operators[-1].join  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "made",
    [
        lambda each: window(ps.Windows.tumbling(each)),
        lambda each: window(ps.Windows.tumbling("1h", offset_ms=each)),
        lambda each: window(ps.Windows.hopping("1h", each)),
        lambda each: window(ps.Windows.session(each)),
        lambda each: window(ps.Windows.sliding(each)),
        lambda each: window(ps.Windows.sliding(each, emit="each")),
        lambda each: window(ps.Windows.tumbling("1h", allowed_lateness_ms=each)),
        ps.Triggers.since_first,
        ps.Triggers.since_last,
        ps.BoundedOutOfOrderness,
        table,
        stored,
        joined,
        lambda each: joined((each, "1s")),
    ],
)
def test_all_forms_of_a_duration_are_the_same(made: Any) -> None:
    one, *others = (made(each) for each in (300_000, "5min", "300s", " 300000 ms", timedelta(minutes=5)))
    assert all(other == one for other in others)


@pytest.mark.parametrize(
    "given", ["", "5", "5 parsecs", "min", "5 minutes", "1.5h", 2.0, True, None, timedelta(microseconds=500), [5]]
)
def test_what_is_no_duration_is_refused(given: Any) -> None:
    with pytest.raises(ps.ConfigError, match=r"gap_ms is a duration .* and ms, s, min, h, d"):
        milliseconds("gap_ms", given)
