"""Makes the record of a commit from its boundary and the markers of all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.api.ssp import SystemStream
from penstock.batch.batch import QUERY, QuerySection
from penstock.batch.positions import by_task, to_next_offsets
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint.intermediate import STREAMS, StreamsSection
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim, Detail, Ended
from penstock.checkpoint.sections import Sections, SectionValues
from penstock.checkpoint.task_versions import build_versions, changelog_identities, last_processed
from penstock.config.settings import TaskSettings
from penstock.driver.feed.boundary import Boundary
from penstock.graph.stores import OPERATOR_STORES, waiting_stores
from penstock.wire.protocol import Markers


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A commit to make, of everything up to a boundary."""

    boundary: Boundary
    detail: Detail = "commit"
    ended: Ended | None = None
    consumed_startpoints: tuple[str, ...] = ()
    """The uuids of the requests that a start takes."""
    reset_operators: tuple[str, ...] = ()
    sections: SectionValues = field(default_factory=dict)
    """The sections of wings that have a part in this commit alone."""
    idle: bool = False
    """True if nothing has happened since the last commit: this one is for backends that have to act by time."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Makes the records of one run."""

    log: CheckpointLog
    layout: Mapping[str, str]
    """Store → its recorded layout."""
    tasks: int
    settings: TaskSettings
    intermediate_layout: Mapping[SystemStream, str] = field(default_factory=dict)
    """The recorded layout of each durable intermediate stream. Its offsets are elsewhere in the record."""
    identities: Mapping[SystemStream, str] = field(default_factory=dict)
    """Distinguishes each input from earlier and later streams of its name."""
    state_ids: Mapping[str, str] = field(default_factory=dict)
    """Operator → the id that its stores are named after, where that is another one."""

    def record(
        self,
        checkpoint_id: CheckpointId,
        parent: CheckpointId | None,
        claim: Claim,
        request: CommitRequest,
        found: Markers,
        sections: SectionValues | None = None,
    ) -> CheckpointRecord:
        """Make the record of a commit. `found`: the markers of its backends. `sections`: those of the wings that took
        part in it."""
        boundary = request.boundary
        stores, found = self._remembered(boundary, found)
        next_offsets = to_next_offsets(boundary.positions, self.tasks)
        record = CheckpointRecord(
            id=checkpoint_id,
            parent=parent,
            epoch=claim.epoch,
            run_id=claim.run_id,
            writer=claim.writer,
            task_count=self.tasks,
            batch=boundary.batch,
            batch_time_ms=boundary.batch_time_ms,
            stores=stores,
            next_offsets=next_offsets,
            tasks={
                task: build_versions(
                    checkpoint_id,
                    last_processed(offsets),
                    found.get(str(task), {}),
                    self.settings.checkpoint_write_versions,
                )
                for task, offsets in next_offsets.items()
            },
            kind_detail=request.detail,
            ended=boundary.closing or request.ended,
            consumed_startpoints=request.consumed_startpoints,
            ended_inputs=tuple(sorted(boundary.ended_inputs)),
            reset_operators=request.reset_operators or tuple(sorted(boundary.drained_operators)),
            lost=boundary.lost,
            identities={**self.identities, **changelog_identities(found)},
            moved=tuple(sorted(boundary.moved)),
            quiet_until=by_task(boundary.quiet_until),
            sections=Sections.of({**self._sections(boundary), **(sections or {}), **request.sections}),
        )
        return replace(record, retained=self.log.known().retained_beside(record, self.settings.checkpoint_retained))

    def _sections(self, boundary: Boundary) -> SectionValues:
        """The sections of what every run reads."""
        streams = {
            # The next run reads nothing of what a run that has ended was to read.
            stream: own.next_generation() if boundary.closed else own
            for stream, own in boundary.intermediate.items()
        }
        return {
            TIME: TimeSection() if boundary.closed else TimeSection(by_task(boundary.event_times), boundary.watermarks),
            STREAMS: StreamsSection(streams, {stream: self.intermediate_layout[stream] for stream in streams}),
            QUERY: QuerySection(boundary.offered),
        }

    def _remembered(self, boundary: Boundary, found: Markers) -> tuple[Mapping[str, str], Markers]:
        """The stores that the record covers, with their markers. Once everything that waits for time has fired, the
        record leaves out the stores of operators: the next run begins without them, however it is defined. Those of
        an operator that was drained alone are left out alone."""
        if boundary.closed:
            stores = {name: layout for name, layout in self.layout.items() if not name.endswith(OPERATOR_STORES)}
        elif boundary.drained_operators:
            empty = waiting_stores(self.state_ids.get(op, op) for op in boundary.drained_operators)
            stores = {name: layout for name, layout in self.layout.items() if name not in empty}
        else:
            return self.layout, found
        return stores, {
            task: {
                backend: {store: marker for store, marker in markers.items() if store in stores}
                for backend, markers in own.items()
            }
            for task, own in found.items()
        }
