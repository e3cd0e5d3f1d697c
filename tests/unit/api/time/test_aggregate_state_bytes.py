"""The state of an aggregate comes back as it was, whatever values are in it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.time.states import decode_state, encode_state

ZONES = st.sampled_from([UTC, ZoneInfo("Europe/Berlin"), None])
SINGLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**90), 2**90),
    st.floats(),
    st.decimals(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.dates(),
    st.times().map(lambda each: each.replace(fold=0)),
    st.timedeltas(),
    st.datetimes(timezones=ZONES).map(lambda each: each if isinstance(each.tzinfo, ZoneInfo) else each.replace(fold=0)),
    st.just("\x00value"),
)
KEYS = st.one_of(st.text(max_size=3), st.just("\x00value"), st.integers(-3, 3), st.dates())
STATES = st.recursive(SINGLE, lambda each: st.lists(each, max_size=3) | st.dictionaries(KEYS, each, max_size=3))


@given(STATES)
def test_states_come_back(state: Any) -> None:
    assert repr(decode_state(encode_state(state))) == repr(state)


@given(st.recursive(st.none() | st.integers(-5, 5) | st.text(max_size=3), lambda each: st.lists(each, max_size=3)))
def test_what_json_has_is_plain_json(state: Any) -> None:
    assert json.loads(encode_state(state)) == state


def test_nanoseconds() -> None:
    state = [pd.Timestamp(1_700_000_000_123_456_789, tz="Europe/Berlin"), pd.Timestamp(1), pd.Timedelta(5)]
    assert repr(decode_state(encode_state(state))) == repr(state)


def test_an_object_without_a_form_is_refused() -> None:
    with pytest.raises(TypeError, match="a value of type object cannot be in the state of an aggregate"):
        encode_state([object()])


def test_the_form_of_what_json_has_not() -> None:
    """As it is in stores, so it stays."""
    state = [Decimal("1.50"), date(2024, 1, 2), time(3), timedelta(seconds=1), b"a", 2**70, float("inf")]
    tag = "\\u0000value"
    expected = f'[{{"{tag}":["Decimal","1.50"]}},{{"{tag}":["date","2024-01-02"]}},{{"{tag}":["time","03:00:00"]}},'
    expected += f'{{"{tag}":["timedelta",1000000]}},{{"{tag}":["bytes","61"]}},'
    expected += f'{{"{tag}":["int","1180591620717411303424"]}},{{"{tag}":["float","inf"]}}]'
    assert encode_state(state).decode() == expected
    assert datetime.fromisoformat("2024-01-02T00:00:00+00:00") == datetime(2024, 1, 2, tzinfo=UTC)
