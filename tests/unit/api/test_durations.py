"""Durations in each form, wherever an application gives one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import penstock as ps
from penstock.base.wording import Duration, milliseconds


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
