"""The checkpoints that `task.checkpoint.retained` keeps, and the form of its value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.retention import keep
from penstock.config.load import load_config
from penstock.config.values.retained import RetainedCheckpoints, RetentionPolicy
from penstock.errors import ConfigError

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MONDAY = 1_700_438_400_000
"""Midnight, UTC."""

policies = st.builds(RetentionPolicy, st.integers(1, 12), st.integers(0, 30), st.integers(0, 9))
gaps = st.lists(st.integers(1, 3 * HOUR_MS) | st.integers(1, 3 * DAY_MS), max_size=60)


def at(millis: int) -> CheckpointId:
    return CheckpointId(millis, 7)


def run(times: list[int], policy: RetentionPolicy) -> dict[int, CheckpointId]:
    """The checkpoints kept, the last one included, after one at each time."""
    kept: dict[int, CheckpointId] = {}
    for slot, time in enumerate(times):
        kept = {**keep(kept, at(time), policy), slot: at(time)}
    return kept


def times_of(steps: list[int]) -> list[int]:
    times = [MONDAY]
    for step in steps:
        times.append(times[-1] + step)
    return times


def test_nine_days_of_checkpoints_every_minute() -> None:
    times = [MONDAY + minute * MINUTE_MS for minute in range(9 * 24 * 60)]
    last = times[-1]
    kept = [checkpoint.millis for checkpoint in run(times, RetentionPolicy(10, 24, 7)).values()]
    newest = [last - back * MINUTE_MS for back in range(9, -1, -1)]
    hours = [last // HOUR_MS * HOUR_MS - back * HOUR_MS for back in range(23, -1, -1)]
    days = [last // DAY_MS * DAY_MS - back * DAY_MS for back in range(6, -1, -1)]
    assert kept == sorted({*newest, *hours, *days})


def test_the_newest_alone() -> None:
    assert keep({3: at(1), 5: at(2)}, at(3), RetentionPolicy(1)) == {}
    assert keep({3: at(1), 5: at(2)}, at(3), RetentionPolicy(2)) == {5: at(2)}
    assert keep({}, at(3), RetentionPolicy(10)) == {}


def test_the_first_of_an_hour_stays_its_whole_term() -> None:
    policy = RetentionPolicy(1, hours=2)
    times = [MONDAY, MONDAY + 1, MONDAY + HOUR_MS - 1, MONDAY + HOUR_MS, MONDAY + 2 * HOUR_MS - 1]
    assert list(run(times, policy)) == [0, 3, 4]
    assert list(run([*times, MONDAY + 2 * HOUR_MS], policy)) == [3, 5]


@given(gaps, policies)
def test_what_is_kept(steps: list[int], policy: RetentionPolicy) -> None:
    times = times_of(steps)
    kept: dict[int, CheckpointId] = {}
    for slot, time in enumerate(times):
        before, kept = kept, keep(kept, at(time), policy)
        assert kept.items() <= before.items(), "what was dropped never comes back"
        assert len(kept) <= policy.newest - 1 + policy.hours + policy.days
        newest = range(max(0, slot - policy.newest + 1), slot)
        assert set(newest) <= kept.keys(), "the newest ones always stay"
        assert keep(dict(reversed(kept.items())), at(time), policy) == kept, "once more, in any order: the same"
        kept = {**kept, slot: at(time)}


@given(gaps, policies, policies)
def test_a_larger_policy_never_keeps_less(steps: list[int], policy: RetentionPolicy, more: RetentionPolicy) -> None:
    *times, new = times_of(steps)
    larger = RetentionPolicy(policy.newest + more.newest, policy.hours + more.hours, policy.days + more.days)
    retained = {slot: at(time) for slot, time in enumerate(times)}
    assert keep(retained, at(new), policy).items() <= keep(retained, at(new), larger).items()


@given(gaps, st.integers(1, 30))
def test_every_hour_of_the_last_ones_keeps_a_checkpoint(steps: list[int], hours: int) -> None:
    times = times_of(steps)
    kept = run(times, RetentionPolicy(1, hours))
    recent = {time // HOUR_MS for time in times if time // HOUR_MS > times[-1] // HOUR_MS - hours}
    assert {checkpoint.millis // HOUR_MS for checkpoint in kept.values()} == recent


@given(policies)
def test_a_policy_is_written_as_it_is_read(policy: RetentionPolicy) -> None:
    assert RetainedCheckpoints().parse(RetainedCheckpoints().text(policy)) == policy


@pytest.mark.parametrize(
    ("given_value", "policy"),
    [
        ("10", RetentionPolicy(10)),
        ("10,24h,7d", RetentionPolicy(10, 24, 7)),
        (" 3 , 7d ", RetentionPolicy(3, 0, 7)),
        (["3", "2h"], RetentionPolicy(3, 2)),
    ],
)
def test_the_key(given_value: object, policy: RetentionPolicy) -> None:
    config = load_config(overrides={"job.name": "a", "task.checkpoint.retained": given_value}, environ={})
    assert config.task.checkpoint_retained == policy
    assert load_config(overrides=config.flat(), environ={}).task.checkpoint_retained == policy


@pytest.mark.parametrize("text", ["", "0", "0,24h", "24h", "10,7d,24h", "10,24", "10,24h,7d,", "-1", "10,1w", "99999"])
def test_wrong_policies(text: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.checkpoint\.retained.*`10,24h,7d`"):
        load_config(overrides={"job.name": "a", "task.checkpoint.retained": text}, environ={})
