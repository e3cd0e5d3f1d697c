"""One grammar of durations and sizes, and what was meant by a text that is none, in every place that takes one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.retention import StreamRetention
from penstock.base.wording import DURATIONS, SIZES, Units, milliseconds
from penstock.cli.startpoint import time_of
from penstock.cli.stream import retention_of
from penstock.config.load import load_config


@pytest.mark.parametrize(
    ("units", "text", "meant"),
    [
        (DURATIONS, "3m", "3min"),
        (DURATIONS, "3M", "3min"),
        (DURATIONS, "5 minutes", "5min"),
        (DURATIONS, "60m", "1h"),
        (DURATIONS, "1.5h", "90min"),
        (DURATIONS, "0.5s", "500ms"),
        (DURATIONS, "1h30m", "90min"),
        (DURATIONS, "1 day, 2 hours and 3 sec", "93603s"),
        (DURATIONS, "PT5M", "5min"),
        (DURATIONS, "P1DT12H", "36h"),
        (DURATIONS, "5 weeks", None),
        (DURATIONS, "10MB", None),
        (DURATIONS, "0.1ms", None),
        (DURATIONS, "0m", None),
        (DURATIONS, "", None),
        (DURATIONS, "P", None),
        (DURATIONS, "soon", None),
        (DURATIONS, "5m!", None),
        (DURATIONS, "5min", None),
        (SIZES, "512k", "512KB"),
        (SIZES, "2g", "2GB"),
        (SIZES, "1.5GB", "1536MB"),
        (SIZES, "10 megabytes", "10MB"),
        (SIZES, "3min", None),
    ],
)
def test_what_was_meant(units: Units, text: str, meant: str | None) -> None:
    assert units.meant(text) == meant


@given(st.sampled_from([DURATIONS, SIZES]), st.integers(1, 10**9), st.data())
def test_what_was_meant_is_what_was_written(units: Units, number: int, data: st.DataObject) -> None:
    word = data.draw(st.sampled_from(sorted(units.others)))
    expected = number * units.factors[units.others[word]]
    meant = units.meant(f"{number}{word}")
    if meant is None:
        assert units.read(f"{number}{word}") == expected, "the word is one of its own"
    else:
        assert units.read(meant) == expected


@given(st.text(max_size=20))
def test_any_text_has_an_answer(text: str) -> None:
    for units in (DURATIONS, SIZES):
        meant = units.meant(text)
        assert meant is None or (units.read(text) is None and units.read(meant) is not None)


def config(key: str) -> Callable[[str], object]:
    return lambda text: load_config(overrides={"job.name": "a", key: text})


PLACES: dict[str, Callable[[str], object]] = {
    "configuration": config("task.commit.ms"),
    "a store's configuration": config("stores.a.changelog.delete.retention.ms"),
    "argument": lambda text: milliseconds("gap_ms", text),
    "window": ps.Windows.session,
    "watermark": ps.BoundedOutOfOrderness,
    "time to live": lambda text: ps.StreamApplication("a").store("s", ttl_ms=text),
    "startpoint": lambda text: time_of(f"{text} ago", 10**12),
    "retention": lambda text: retention_of(text, None, StreamRetention()),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("text", "meant"), [("3m", "3min"), ("2 hours", "2h"), ("1h30m", "90min")])
def test_every_place_of_durations_says_what_was_meant(place: str, text: str, meant: str) -> None:
    with pytest.raises(ps.ConfigError, match=f"did you mean `{meant}`"):
        PLACES[place](text)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", ["3min", "3 MIN", "90s"])
def test_every_place_of_durations_takes_the_same_texts(place: str, text: str) -> None:
    PLACES[place](text)


@pytest.mark.parametrize("key", ["task.commit.max.pending.bytes", "job.batch.max.bytes"])
def test_sizes_say_what_was_meant(key: str) -> None:
    with pytest.raises(ps.ConfigError, match="did you mean `64MB`"):
        config(key)("64m")
    with pytest.raises(ps.ConfigError, match="did you mean `64MB`"):
        retention_of(None, "64m", StreamRetention())
