"""Watermarks against a plain oracle, over many batches: graphs with merges, partitions that are idle, return, or end,
timers that are due, operators that are added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME, NO_WATERMARK, BoundedOutOfOrderness
from penstock.batch.batch import TaskSsp
from penstock.batch.watermarks import TimedInput, TimeFlow, later_event_times, next_watermarks

STREAMS = [SystemStream("m", name) for name in "ab"]
DELAYS = dict(zip(STREAMS, (0, 7), strict=True))
READERS = [TaskSsp(n, SystemStreamPartition(s.system, s.stream, n)) for s in STREAMS for n in range(2)]
INPUTS = dict(zip(("a", "b"), STREAMS, strict=True))
times = st.integers(-50, 50)


@dataclass
class Step:
    """One batch's observations."""

    read: dict[TaskSsp, int]
    idle: dict[TaskSsp, int]
    ended: set[TaskSsp]
    oldest: dict[str, int]
    operators: int


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    graph: dict[str, tuple[str, ...]] = {"a": (), "b": ()}
    for number in range(draw(st.integers(1, 5))):
        names = draw(st.lists(st.sampled_from(list(graph)), min_size=1, max_size=3, unique=True))
        graph[f"o{number}"] = tuple(names)
    return graph


steps = st.builds(
    Step,
    read=st.dictionaries(st.sampled_from(READERS), times),
    idle=st.dictionaries(st.sampled_from(READERS), st.integers(1, 3)),
    ended=st.sets(st.sampled_from(READERS), max_size=2),
    oldest=st.dictionaries(st.sampled_from([f"o{n}" for n in range(5)]), times, max_size=2),
    operators=st.integers(1, 5),
)


def flow_of(graph: Mapping[str, tuple[str, ...]], operators: int) -> TimeFlow:
    """The first operators only: the others are added later."""
    kept = [op for op in graph if op in INPUTS or int(op[1:]) < operators]
    inputs = {op: TimedInput(stream, BoundedOutOfOrderness(DELAYS[stream])) for op, stream in INPUTS.items()}
    return TimeFlow({op: graph[op] for op in kept}, inputs)


@dataclass
class Oracle:
    """By recursion from an operator to what it reads, in words of the documentation: partitions become idle one after
    the other, those without any message before others of the same moment, and where all are idle, the watermark
    stays."""

    flow: TimeFlow
    highest: dict[TaskSsp, int]
    step: Step
    ended: set[TaskSsp]
    last: dict[str, int]
    moment: float = 0

    @classmethod
    def at_last(
        cls, flow: TimeFlow, highest: dict[TaskSsp, int], step: Step, ended: set[TaskSsp], last: dict[str, int]
    ) -> Oracle:
        """After all have become idle that are."""
        now = cls(flow, highest, step, ended, last)
        for half in range(1, 7):
            now = cls(flow, highest, step, ended, {op: now.firing(op) for op in flow.upstream}, half / 2)
        return now

    def begins(self, op: str) -> int:
        if op in self.last:
            return self.last[op]
        return min((self.began(up) for up in self.flow.upstream[op]), default=NO_WATERMARK)

    def began(self, op: str) -> int:
        """The time up to which it is complete, without what its due timers will still emit."""
        due = self.step.oldest.get(op)
        return self.begins(op) if due is None or due > self.begins(op) else due - 1

    def output(self, op: str) -> int | str:
        """A time, "idle" or "ended"."""
        found = self.found(op)
        due = self.step.oldest.get(op)
        if due is not None and due <= self.firing(op):
            return due - 1
        return found if found in {"idle", "ended"} else self.firing(op)

    def found(self, op: str) -> int | str:
        if op in INPUTS:
            parts = [at for at in READERS if at.ssp.system_stream == INPUTS[op] and at not in self.ended]
            told: list[int | str] = [
                "idle" if self.step.idle.get(at, 9) - (at not in self.highest) / 2 <= self.moment
                else self.highest[at] - DELAYS[INPUTS[op]] if at in self.highest
                else NO_WATERMARK
                for at in parts
            ]  # fmt: skip
        else:
            told = [self.output(up) for up in self.flow.upstream[op]]
        numbers = [each for each in told if isinstance(each, int)]
        return min(numbers) if numbers else "idle" if "idle" in told else "ended"

    def firing(self, op: str) -> int:
        found = self.found(op)
        if found == "idle":
            return self.begins(op)
        return max(self.begins(op), found) if isinstance(found, int) else END_OF_TIME


@given(graphs(), st.lists(steps, min_size=1, max_size=6))
def test_watermarks_are_those_of_the_oracle(graph: dict[str, tuple[str, ...]], batches: list[Step]) -> None:
    highest: dict[TaskSsp, int] = {}
    ended: set[TaskSsp] = set()
    last: dict[str, int] = {}
    for step in batches:
        flow = flow_of(graph, step.operators)
        step.oldest = {op: due for op, due in step.oldest.items() if op in flow.upstream}
        highest = later_event_times(highest, step.read.items())
        ended |= step.ended
        found = next_watermarks(
            flow, READERS, highest, last, idle=step.idle, ended={at.ssp for at in ended}, oldest=step.oldest
        )
        first = Oracle(flow, highest, step, ended, last)
        oracle = Oracle.at_last(flow, highest, step, ended, last)
        for op in flow.upstream:
            firing, late = found.firing.get(op, NO_WATERMARK), found.late.get(op, NO_WATERMARK)
            assert firing == oracle.firing(op)
            assert late == first.begins(op) <= firing
            due = step.oldest.get(op)
            assert found.held.get(op) == (due - 1 if due is not None and due <= firing else None)
            assert firing >= last.get(op, NO_WATERMARK), "no watermark falls"
        assert {op: mark for op, mark in found.late.items() if op in last} == {
            op: mark for op, mark in last.items() if op in flow.upstream
        }
        last = dict(found.firing)


@given(graphs(), steps)
def test_the_first_watermark_is_the_lowest_that_leads_there(graph: dict[str, tuple[str, ...]], step: Step) -> None:
    flow = flow_of(graph, 5)
    ended = {at.ssp for at in step.ended}
    found = next_watermarks(flow, READERS, step.read, {}, idle=step.idle, ended=ended)
    for op in flow.upstream:
        sources, ahead = {op}, [op]
        while ahead:
            ups = flow.upstream[ahead.pop()]
            sources.update(ups)
            ahead += ups
        parts = [at for at in READERS if at.ssp.system_stream in {INPUTS[s] for s in sources if s in INPUTS}]
        live = [at for at in parts if at.ssp not in ended and at not in step.idle]
        if not live:  # those that became idle last; of the same moment, those that have had a message
            idle = {at: (step.idle[at], at in step.read) for at in parts if at.ssp not in ended}
            live = [at for at, since in idle.items() if since == max(idle.values())]
        told = [step.read[at] - DELAYS[at.ssp.system_stream] if at in step.read else NO_WATERMARK for at in live]
        expected = min(told, default=END_OF_TIME)
        assert found.firing.get(op, NO_WATERMARK) == expected
