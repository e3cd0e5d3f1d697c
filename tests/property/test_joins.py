"""Joins against a plain program over all messages: in any order, lateness and batches, with attempts that are discarded
and restarts in between."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.runtime import joins
from penstock.runtime.timers import time_of
from tests.support.oracles.stage_batches import LATE, OUT, Message, StageBatches
from tests.support.tools.profiles import examples

KINDS = st.sampled_from(["inner", "left", "right", "outer"])
BOUNDS = st.tuples(st.integers(0, 12), st.integers(0, 12))
Given = tuple[str, str | None, int]
"""Side, key, time."""
Step = tuple[list[Given], int, int, bool]
"""The messages of a batch, how far the watermark moves, attempts that are discarded, and whether a restart follows."""
STEPS = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["a", "b", None]), st.integers(0, 60)),
            max_size=10,
        ),
        st.integers(0, 25),
        st.integers(0, 1),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)
START = 0
END = 2**63 - 1
Result = tuple[str | None, int | None, int | None, int]
"""Key, numbers of the left and the right message, time."""
Found = list[tuple[list[Result], list[int]]]
"""For each batch, and then for the end of the stream: results in order, and the messages that were late."""


def stage(bounds: tuple[int, int], kind: Any, keep: Any) -> StageBatches:
    app = ps.StreamApplication("a")
    late = app.output(LATE)
    left, right = app.input("m.left", id="left"), app.input("m.right", id="right")
    pairs = left.join(right, lambda n, m: [n, m], within_ms=bounds, kind=kind, keep=keep, late_to=late, id="j")
    pairs.send_to(app.output(OUT))
    return StageBatches(app, "j")


def run(steps: list[Step], bounds: tuple[int, int], kind: str, keep: str) -> Found:
    job, found, number, watermark = stage(bounds, kind, keep), [], 0, START

    def read(sent: dict[str, list[tuple[Any, Any, int]]]) -> tuple[list[Result], list[int]]:
        assert job.failed is None
        results = [(key, *value, time) for key, value, time in sent.get(OUT, [])]
        return sorted(results, key=repr), [value for _, value, _ in sent.get(LATE, [])]

    for messages, moved, discards, restart in steps:
        late = watermark
        watermark += moved
        batch = []
        for side, key, time in messages:
            number += 1
            batch.append(Message(key, number, time, side))
        found.append(read(job.run(batch, watermark, discards=discards)))
        assert all(time >= late for _, _, _, time in found[-1][0]), "nothing is late downstream"
        check_bounded(job, watermark, sum(bounds) + 1)
        if restart:
            job.restart()
    found.append(read(job.run([], END, control="end-of-stream")))
    assert job.entries("j.join") == {}, "nothing is left"
    job.close()
    return found


def check_bounded(job: StageBatches, watermark: int, span: int) -> None:
    """Assert that entries are not older than the watermark by more than some spans."""
    for entry in job.entries("j.join"):
        if entry[:1] in (b"c", b"p"):
            assert time_of(entry[1:9]) + 4 * span > watermark
        if entry[:1] == b"u":
            assert time_of(entry[1:9]) > watermark


def sorted_out(steps: list[Step]) -> tuple[list[tuple[int, int, str, str | None, int]], list[list[int]], list[int]]:
    """(step, number, side, key, time) of messages in time, the late ones of each step, and the watermarks."""
    taken: list[tuple[int, int, str, str | None, int]] = []
    late: list[list[int]] = []
    watermarks, number = [START], 0
    for step, (messages, moved, _, _) in enumerate(steps):
        late.append([])
        for side, key, time in messages:
            number += 1
            if step and time < watermarks[-1]:
                late[-1].append(number)
            else:
                taken.append((step, number, side, key, time))
        watermarks.append(watermarks[-1] + moved)
    return taken, [*late, []], [*watermarks[1:], END]


def alone(side: str, key: str | None, number: int, time: int, bounds: tuple[int, int]) -> Result:
    before, after = bounds
    return (key, number, None, time + after) if side == "left" else (key, None, number, time + before)


@examples(0.7)
@given(STEPS, BOUNDS, KINDS, st.sampled_from([30, 4096]))
def test_all_messages_of_the_span(steps: list[Step], bounds: tuple[int, int], kind: str, piece_bytes: int) -> None:
    taken, late, watermarks = sorted_out(steps)
    results: list[list[Result]] = [[] for _ in watermarks]
    before, after = bounds
    joined = set()
    for step, n, side, key, t in taken:
        for other_step, m, other_side, other_key, u in taken:
            if (
                (side, other_side) == ("left", "right")
                and key == other_key is not None
                and t - before <= u <= t + after
            ):
                results[max(step, other_step)].append((key, n, m, max(t, u)))
                joined |= {n, m}
    for step, n, side, key, t in taken:
        if kind in (side, "outer") and n not in joined:
            result = alone(side, key, n, t, bounds)
            waits = range(step, len(watermarks)) if key is not None else [step]
            results[next(k for k in waits if key is None or watermarks[k] > result[3])].append(result)
    expected = [(sorted(some, key=repr), late[step]) for step, some in enumerate(results)]
    with patch.object(joins, "_PIECE_BYTES", piece_bytes):
        assert run(steps, bounds, kind, "all") == expected


class Newest:
    """The newest messages, looked at one message after the other."""

    def __init__(self, bounds: tuple[int, int], kind: str) -> None:
        self.bounds, self.kind = bounds, kind
        self.rows: dict[tuple[str, str], list[Any]] = {}
        """By side and key: number, time, whether it was joined."""

    def take(self, side: str, key: str | None, number: int, time: int) -> list[Result]:
        """The results of a message."""
        new = [number, time, False]
        if key is None:
            return self.left_alone(side, key, new)
        found = self.pairs(side, key, new)
        old = self.rows.get((side, key))
        if old is not None and time < old[1]:
            return found + self.left_alone(side, key, new)
        self.rows[side, key] = new
        return found + ([] if old is None else self.left_alone(side, key, old))

    def pairs(self, side: str, key: str, new: list[Any]) -> list[Result]:
        other = self.rows.get(("right" if side == "left" else "left", key))
        if other is None:
            return []
        left, right = (new, other) if side == "left" else (other, new)
        if not left[1] - self.bounds[0] <= right[1] <= left[1] + self.bounds[1]:
            return []
        new[2] = other[2] = True
        return [(key, left[0], right[0], max(left[1], right[1]))]

    def left_alone(self, side: str, key: str | None, row: list[Any]) -> list[Result]:
        if row[2] or self.kind not in (side, "outer"):
            return []
        return [alone(side, key, row[0], row[1], self.bounds)]

    def expire(self, watermark: int) -> list[Result]:
        gone = [(at, row) for at, row in self.rows.items() if alone(*at, row[0], row[1], self.bounds)[3] < watermark]
        for at, _ in gone:
            del self.rows[at]
        return [result for at, row in gone for result in self.left_alone(*at, row)]


@examples(0.7)
@given(STEPS, BOUNDS, KINDS)
def test_the_newest_of_each_key(steps: list[Step], bounds: tuple[int, int], kind: str) -> None:
    taken, late, watermarks = sorted_out(steps)
    newest, expected = Newest(bounds, kind), []
    for step, watermark in enumerate(watermarks):
        results = [r for at, n, side, key, t in taken if at == step for r in newest.take(side, key, n, t)]
        expected.append((sorted([*results, *newest.expire(watermark)], key=repr), late[step]))
    assert run(steps, bounds, kind, "newest") == expected


@pytest.mark.few(1)
@pytest.mark.parametrize("keep", ["all", "newest"])
def test_state_is_bounded_while_the_watermark_advances(keep: str) -> None:
    job, most = stage((30, 10), "outer", keep), 0
    for number in range(200):
        batch = [Message(f"k{number % 7}", n, number * 5 + n, "right" if n % 3 else "left") for n in range(6)]
        job.run(batch, number * 5 - 10)
        most = max(most, len(job.entries("j.join"))) if number < 50 else most
        assert number < 50 or len(job.entries("j.join")) <= most
    job.close()
