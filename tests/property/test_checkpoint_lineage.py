"""Ids, lineage and retention of checkpoints under clocks that go back, and the form of `task.checkpoint.retained`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log_view import LogView, keep, prunable
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim, Record
from penstock.config.kinds import RetainedCheckpoints, RetentionPolicy
from penstock.config.load import load_config
from penstock.errors import ConfigError
from tests.support.stores.checkpoints import checkpoint

SSP = SystemStreamPartition("local", "events", 0)
HOUR_MS = 3_600_000
NOON = 1_700_481_600_000


@dataclass
class Job:
    """A log, appended to as a driver does, and who descends from whom."""

    policy: RetentionPolicy
    records: dict[int, Record] = field(default_factory=dict)
    lineages: dict[CheckpointId, tuple[CheckpointId, ...]] = field(default_factory=dict)
    """Checkpoint -> its ancestors, oldest first, whether they are still there or not."""

    @property
    def view(self) -> LogView:
        return LogView.of(self.records, {}, 1 + max(self.records, default=-1))

    def claim(self) -> Claim:
        claim = Claim(self.view.next_epoch(), "run", f"w{len(self.records)}")
        self.records[self.view.end] = claim
        return claim

    def commit(self, claim: Claim, now_ms: int, parent: CheckpointId | None, **changes: Any) -> CheckpointRecord:
        view = self.view
        new = view.next_id(now_ms, 5)
        record = replace(checkpoint(claim, 1, parent), id=new, **changes)
        record = replace(record, retained=view.retained_beside(record, self.policy))
        self.records[view.end] = record
        self.lineages[new] = (*self.lineages[parent], parent) if parent else ()
        ancestors = {slot: each for slot, each in view.retained.items() if each in self.lineages[new]}
        newest = list(ancestors)[max(0, len(ancestors) - self.policy.newest + 1) :]
        kept = self.view.retained
        assert changes or {view.end, *newest} <= set(kept), "the newest ones of the lineage stay"
        assert changes or set(keep(ancestors, new, self.policy)) <= set(kept), "what else was left takes no place"
        for slot in prunable(self.view.records):  # the most that pruning may take
            del self.records[slot]
        return record

    def run(self, now_ms: int, commits: int, from_checkpoint: CheckpointId | None = None) -> CheckpointRecord:
        """A start at the last checkpoint or a named one, and some commits, a second after each other."""
        latest = self.view.latest
        parent = from_checkpoint or (latest.id if latest else None)
        claim = self.claim()
        for number in range(commits):
            parent = self.commit(claim, now_ms + number * 1000, parent).id
        last = self.view.latest
        assert last is not None
        return last


def test_a_start_from_an_older_checkpoint_under_a_clock_that_went_back() -> None:
    """The live checkpoints are the ones that stay, and no id comes twice."""
    job = Job(RetentionPolicy(4))
    job.run(NOON, 10)
    older = job.view.restorable[0].id
    abandoned = {record.id for record in job.view.restorable[1:]}
    last = job.run(NOON - 5 * HOUR_MS, 1, older)
    assert last.id > max(abandoned)
    assert {record.id for record in job.view.restorable} == {older, last.id, *sorted(abandoned)[-2:]}, (
        "what the lineage leaves free shows a way back"
    )
    last = job.run(NOON - 5 * HOUR_MS, 3)
    assert abandoned.isdisjoint(record.id for record in job.view.restorable)
    assert {record.id for record in job.view.restorable} == {*job.lineages[last.id][-3:], last.id}


def test_hours_and_days_are_those_of_the_lineage() -> None:
    policy = RetentionPolicy(1, hours=3)
    job = Job(policy)
    job.run(NOON, 2)
    job.run(NOON + HOUR_MS, 2)
    first, second, _ = job.view.restorable
    live = job.run(NOON + HOUR_MS + 60_000, 2, first.id)
    assert [record.id for record in job.view.restorable] == [first.id, job.lineages[live.id][-1], live.id]
    assert second.id not in job.view.retained.values()


def restart(job: Job, now_ms: int, **changes: Any) -> CheckpointRecord:
    """A start and a stop between which nothing is processed."""
    latest = job.view.latest
    claim = job.claim()
    parent = latest.id if latest else None
    start = job.commit(claim, now_ms, parent, kind_detail="start", **changes)
    assert job.view.latest == start
    return job.commit(claim, now_ms, start.id, ended="stopped", **changes)


@pytest.mark.parametrize("newest", [1, 2, 4])
def test_starts_and_stops_use_none_of_the_retention_up(newest: int) -> None:
    """A job that is restarted again and again keeps its checkpoints; of starts and stops only the last one stays."""
    job = Job(RetentionPolicy(newest))
    claim, parent = job.claim(), None
    for batch in range(1, 7):
        parent = job.commit(claim, NOON, parent, batch=batch).id
    commits = [record.id for record in job.view.restorable]
    assert len(commits) == newest
    for number in range(20):
        last = restart(job, NOON + number, batch=6)
        assert [record.id for record in job.view.restorable] == [*commits[:-1], last.id]
    moved = restart(job, NOON, batch=6, next_offsets={0: {SSP: 5}}).parent
    assert moved in job.view.retained.values(), "a start that moved a position is none of them"
    after = job.commit(job.claim(), NOON, job.view.restorable[-1].id, batch=7, next_offsets={0: {SSP: 6}})
    assert [record.id for record in job.view.restorable] == [*commits[:-1], last.id, moved, after.id][-newest:]


runs = st.lists(
    st.tuples(
        st.integers(-3 * HOUR_MS, 6 * HOUR_MS),  # how the clock moves before the run
        st.integers(1, 6),  # commits
        st.none() | st.integers(0, 30),  # which retained checkpoint it starts from
    ),
    min_size=1,
    max_size=12,
)


@example(
    [(-1, 3, None), (0, 2, 0), (0, 5, 27), (0, 1, None), (0, 1, None), (0, 1, None), (0, 2, 20)],
    RetentionPolicy(4, 1, 1),
)
@example([(0, 3, None), (HOUR_MS, 1, None), (0, 2, 5), (0, 1, 5), (0, 1, 8)], RetentionPolicy(3, 1, 1))
@given(runs, st.builds(RetentionPolicy, st.integers(1, 5), st.integers(0, 4), st.integers(0, 2)))
def test_the_live_lineage_is_what_stays(steps: Sequence[tuple[int, int, int | None]], policy: RetentionPolicy) -> None:
    job, now = Job(policy), NOON
    for moved, commits, choice in steps:
        now += moved
        before = job.view.restorable
        named = before[choice % len(before)].id if before and choice is not None else None
        last = job.run(now, commits, named)
        kept = [record.id for record in job.view.restorable]
        ids = [record.id for record in job.view.checkpoints]
        assert ids == sorted(set(ids)), "each id is above every one before it"
        assert last.id == max(job.lineages)
        assert len(kept) <= policy.newest + policy.hours + policy.days
        assert kept[-1] == last.id


MINUTE_MS = 60_000
AN_HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * AN_HOUR_MS
MONDAY = 1_700_438_400_000
"""Midnight, UTC."""

policies = st.builds(RetentionPolicy, st.integers(1, 12), st.integers(0, 30), st.integers(0, 9))
gaps = st.lists(st.integers(1, 3 * AN_HOUR_MS) | st.integers(1, 3 * DAY_MS), max_size=60)


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
    hours = [last // AN_HOUR_MS * AN_HOUR_MS - back * AN_HOUR_MS for back in range(23, -1, -1)]
    days = [last // DAY_MS * DAY_MS - back * DAY_MS for back in range(6, -1, -1)]
    assert kept == sorted({*newest, *hours, *days})


def test_the_newest_alone() -> None:
    assert keep({3: at(1), 5: at(2)}, at(3), RetentionPolicy(1)) == {}
    assert keep({3: at(1), 5: at(2)}, at(3), RetentionPolicy(2)) == {5: at(2)}
    assert keep({}, at(3), RetentionPolicy(10)) == {}


def test_the_first_of_an_hour_stays_its_whole_term() -> None:
    policy = RetentionPolicy(1, hours=2)
    times = [MONDAY, MONDAY + 1, MONDAY + AN_HOUR_MS - 1, MONDAY + AN_HOUR_MS, MONDAY + 2 * AN_HOUR_MS - 1]
    assert list(run(times, policy)) == [0, 3, 4]
    assert list(run([*times, MONDAY + 2 * AN_HOUR_MS], policy)) == [3, 5]


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
    recent = {time // AN_HOUR_MS for time in times if time // AN_HOUR_MS > times[-1] // AN_HOUR_MS - hours}
    assert {checkpoint.millis // AN_HOUR_MS for checkpoint in kept.values()} == recent


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
