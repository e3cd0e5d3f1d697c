"""Starts that break off anywhere, operators who write and delete meanwhile, a log that is pruned: every request moves
the job at most once, and the newest one that a start found is the one that does. Hypothesis against a list."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.api.requests import StartpointSpecific
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import keep
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim
from penstock.checkpoint.task_versions import build_versions
from penstock.config.load import load_config
from penstock.graph.specs import ApplicationGraph
from penstock.objects.file import FileObjectStore
from penstock.start.inputs import group_inputs
from penstock.start.plan import StartFacts, StartPlan, plan_start, read_requests, resolver
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import StartpointRequest, task_name
from penstock.start.startpoints import JobInputs
from penstock.system.memory import MemorySystem
from tests.support.stores.checkpoints import checkpoint
from tests.support.stores.stopped_job import PATHS, STREAM, ssp

MESSAGES = 50
TTL_MS = 1000
CONFIG = load_config(
    overrides={"job.name": "flights", "job.startpoint.ttl.ms": TTL_MS, "task.checkpoint.retained": "1,0h,0d"},
    environ={},
)
PARTITIONS = st.integers(0, 1)


class Starts(RuleBasedStateMachine):
    """A job of two tasks. `there` are the requests that no start has taken, as the model has them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="startpoints-"))
        self.now_ms = 1_700_000_000_000
        self.objects = FileObjectStore(self.folder)
        self.manager = StartpointManager(self.objects, PATHS, TTL_MS, lambda: self.now_ms)
        self.system = MemorySystem("local")
        self.system.admin().create_stream(STREAM, 2)
        writer = self.system.writer(None)
        for partition in range(2):
            writer.append(ssp(partition), [(0, None, b"v")] * MESSAGES)
        self.there: list[StartpointRequest] = []
        self.positions = {ssp(0): 0, ssp(1): 0}
        """In the last checkpoint."""
        self.applied: list[str] = []
        self.claim: Claim | None = None
        self.log = CheckpointLog(self.objects, PATHS)
        self.last: CheckpointRecord | None = None

    def teardown(self) -> None:
        """Nothing stays."""
        shutil.rmtree(self.folder)

    # Operators.

    @rule(partition=PARTITIONS, offset=st.integers(0, MESSAGES), skew=st.integers(-20, 20), own=st.booleans())
    def write(self, partition: int, offset: int, skew: int, own: bool) -> None:
        """Clocks differ."""
        startpoint = StartpointSpecific(str(offset), creation_timestamp=self.now_ms + skew)
        task = task_name(partition) if own else None
        self.there.append(self.manager.write_startpoint(ssp(partition), startpoint, task))

    @rule(partition=PARTITIONS, own=st.booleans())
    def delete(self, partition: int, own: bool) -> None:
        """By key."""
        task = task_name(partition) if own else None
        self.manager.delete_startpoint(ssp(partition), task)
        self.there = [r for r in self.there if (r.key.ssp, r.key.task) != (ssp(partition), task)]

    @rule(passed=st.integers(1, TTL_MS))
    def time_passes(self, passed: int) -> None:
        """Some expire."""
        self.now_ms += passed

    # The job.

    @rule(dies=st.sampled_from(["before the claim", "before the record", "before it deletes", "half-way", "not"]))
    def start(self, dies: str) -> None:
        """As a driver does it: plan, claim, one record, delete."""
        log = CheckpointLog(self.objects, PATHS)
        plan = self._plan(log)
        if dies == "before the claim":
            return
        self.log, self.claim = log, log.claim("run")
        if dies == "before the record":
            self.claim = None
            return
        self._expect(plan)
        self._append({at.ssp: n for at, n in plan.positions.items()}, plan.consumed)
        if dies == "before it deletes":
            self.claim = None
            return
        requests = plan.requests[: len(plan.requests) // 2] if dies == "half-way" else plan.requests
        self.manager.delete(requests)
        if dies == "half-way":
            self.claim = None

    @precondition(lambda self: self.claim is not None)
    @rule(steps=st.integers(1, 30))
    def commit(self, steps: int) -> None:
        """A running job commits; what is no longer retained is pruned, the start checkpoint as well."""
        for _ in range(steps):
            self._append({s: min(MESSAGES, n + 1) for s, n in self.positions.items()}, ())
            self.log.prune()

    @invariant()
    def nothing_is_applied_twice(self) -> None:
        """Over the whole life of the job."""
        assert len(self.applied) == len(set(self.applied))

    def _plan(self, log: CheckpointLog) -> StartPlan:
        ends = {ssp(n): end for n, end in self.system.admin().offsets(STREAM).items()}
        admins = {"local": self.system.admin()}
        inputs = JobInputs(group_inputs(ends).tasks, ends)
        view = log.read()
        requests = read_requests(self.manager, view, CONFIG)
        facts = StartFacts(ApplicationGraph("flights", (), (), ()), CONFIG, inputs, view, requests)
        return plan_start(facts, resolver(admins))

    def _expect(self, plan: StartPlan) -> None:
        """The start takes all that is there; of each partition the one made last, unless it is expired, moves it."""
        for partition in range(2):
            own = [r for r in self.there if r.key.ssp == ssp(partition) and not r.is_expired(self.now_ms, TTL_MS)]
            if own:
                newest = max(own, key=lambda r: (r.startpoint.creation_timestamp, r.key.task is not None, r.uuid))
                assert isinstance(newest.startpoint, StartpointSpecific)
                self.positions[ssp(partition)] = int(newest.startpoint.specific_offset)
                self.applied.append(f"{newest.key.ssp} {newest.uuid}")
        assert {at.ssp: n for at, n in plan.positions.items()} == self.positions
        assert all(at.task == at.ssp.partition for at in plan.positions)
        self.there = []

    def _append(self, positions: object, consumed: tuple[str, ...]) -> None:
        assert self.claim is not None
        assert isinstance(positions, dict)
        last = max((r.id for r in self.log.known().checkpoints), default=None)
        checkpoint_id = CheckpointId.next_after(last, self.now_ms, 0)
        record = replace(
            checkpoint(self.claim, 1),
            id=checkpoint_id,
            task_count=2,
            next_offsets={n: {ssp(n): positions[ssp(n)]} for n in range(2)},
            tasks={n: build_versions(checkpoint_id, {}, {}, (2,)) for n in range(2)},
            consumed_startpoints=consumed,
            retained=keep(self.log.known().retained, checkpoint_id, CONFIG.task.checkpoint_retained),
        )
        self.log.append(record)
        self.positions = dict(positions)


TestStarts = Starts.TestCase
