"""The inputs of a job whose startpoints are set, and whether a startpoint fits them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from penstock.admin.jobs import FoundJob
from penstock.admin.table import side_stores
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.application.application import Application
from penstock.base.wording import argument
from penstock.batch.batch import to_next_offsets
from penstock.checkpoint.edit import OffsetChange, offset_changes
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.streams import STREAMS
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, IncompatibleError
from penstock.graph.store_declarations import side_input_of
from penstock.start.inputs import with_matches
from penstock.start.job_streams import INTERMEDIATE, JobStreams
from penstock.start.layout import check_layout
from penstock.start.part import complete
from penstock.start.plan import StartRequest, resettable, resolver
from penstock.start.positions import kept_streams, refuse_recreated, start_positions
from penstock.start.startpoint_request import StartpointRequest
from penstock.start.startpoints import Candidates, JobInputs, StartDecision, decide_start
from penstock.system.base import PartitionOffsets, SystemAdmin
from penstock.system.registry import open_system


def application_inputs(config: JobConfig, app: Application) -> JobInputs:
    """The inputs of each task, and their ends. Raises NotFoundError if an input does not exist."""
    graph = with_matches(complete(app.graph(), config), config)
    with closing(JobStreams.open(graph, config)) as streams:
        ends = streams.ends()
        others = streams.without_startpoints(graph, config)
        return JobInputs(streams.group(ends).tasks, ends, others, streams.identities(), streams.patterns)


class Admins(dict[str, SystemAdmin]):
    """The admin of every system, opened when it is first asked for. Raises ConfigError for one that is not there."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config

    def __missing__(self, system: str) -> SystemAdmin:
        self[system] = open_system(self._config.system(system)).admin()
        return self[system]

    def close(self) -> None:
        for admin in self.values():
            admin.close()


@dataclass(frozen=True, slots=True)
class StartpointJob:
    """A job, its log as it was read, and what it reads."""

    found: FoundJob
    view: LogView
    candidates: Candidates
    inputs: JobInputs
    admins: Mapping[str, SystemAdmin]

    @property
    def origin(self) -> CheckpointRecord | None:
        """The checkpoint a start would begin with."""
        return self.candidates.origin

    @property
    def stores(self) -> list[str]:
        return [] if self.origin is None else sorted(self.origin.stores)

    def decide(self, live: Sequence[StartpointRequest], new: Collection[StartpointRequest] = ()) -> StartDecision:
        """The decision of a start now; `new` are the unwritten requests of `live`. Raises as `decide_start`."""
        return decide_start(live, self.inputs, self.candidates, self.resolve, new)

    def resolve(self, request: StartpointRequest) -> int:
        """The offset a request means now."""
        return resolver(self.admins)(request)

    def changes(self, decision: StartDecision) -> tuple[OffsetChange, ...]:
        """Every position that the start would move, compared with the last checkpoint; all, if there is none.

        Raises:
            IncompatibleError: an input has another number of partitions than at the checkpoint.
        """
        after = to_next_offsets(start_positions(decision, self.inputs, self.found.config), len(self.inputs.tasks))
        return offset_changes({} if self.origin is None else self.origin.next_offsets, after)


@contextmanager
def open_inputs(found: FoundJob) -> Iterator[StartpointJob]:
    """The job and its inputs: those of its application, if it was opened with it, else of its last checkpoint.

    Raises:
        NotFoundError: a stream that it reads does not exist.
        ConfigError: it has no checkpoint, and was opened without its application.
    """
    view = found.log.read()
    candidates = Candidates.of(view, found.config.task)
    admins = Admins(found.config)
    try:
        if found.application is not None:
            inputs = application_inputs(found.config, found.application)
        elif candidates.origin is not None:
            inputs = _of_checkpoint(found, candidates.origin, admins)
        else:
            raise ConfigError(
                f"job `{found.paths.root}` has no checkpoint yet, so its inputs are not known: name its application "
                f"with {argument('app')}"
            )
        yield StartpointJob(found, view, candidates, inputs, admins)
    finally:
        admins.close()


def _of_checkpoint(found: FoundJob, record: CheckpointRecord, admins: Mapping[str, SystemAdmin]) -> JobInputs:
    config = found.config
    read = record.streams
    ends: dict[SystemStreamPartition, PartitionOffsets] = {}
    for stream in read:
        for partition, end in admins[stream.system].offsets(stream.stream).items():
            ends[SystemStreamPartition(stream.system, stream.stream, partition)] = end
    others = {config.store(store).changelog: f"the changelog of store `{store}`" for store in record.stores}
    if config.task.dead_letter_stream is not None:
        others[config.task.dead_letter_stream] = "task.dead.letter.stream, which the job writes"
    others |= dict.fromkeys(record.section(STREAMS).streams, INTERMEDIATE)
    for each in side_stores(found):
        streams = {SystemStream.parse(stream) for stream in each.side_inputs}
        others |= dict.fromkeys(streams - read, side_input_of([each.store]))
    all_identities = {stream: admins[stream.system].stream_identity(stream.stream) for stream in read}
    identities = {stream: identity for stream, identity in all_identities.items() if identity is not None}
    return JobInputs(record.next_offsets, ends, others, identities)


def check_nearest(job: StartpointJob, decision: StartDecision, new: Sequence[StartpointRequest]) -> Iterator[str]:
    """Check that a start could go back to the checkpoint that `nearest` chose: else each start is refused while the
    startpoint waits. Yields notes about what the start has to be told.

    Raises:
        IncompatibleError: it would be refused with any choice; says why.
    """
    record, app = decision.restore_from, job.found.application
    if decision.with_state != "nearest" or record is None or record == job.origin:
        return
    try:
        if app is not None:
            _start(job, app, new)
        else:
            _as_last_run(job, decision, record)
    except IncompatibleError as error:
        if app is None:
            raise IncompatibleError(
                f"{argument('with_state', 'nearest')} would begin at checkpoint {record.id}, and the application of "
                f"the last run could not start there: {error}. If another one starts next, name it with "
                f"{argument('app')}"
            ) from error
        operators = sorted(resettable(app.graph(), record))
        _start(job, app, new, operators)  # refused for another reason
        yield f"a start has to reset operators ({argument('reset_operators')}), and is refused otherwise: {error}"


def _start(
    job: StartpointJob, app: Application, new: Sequence[StartpointRequest], reset_operators: Sequence[str] = ()
) -> None:
    from penstock.start.check import check_start  # Arrow, which only this needs

    request = StartRequest("", reset_operators=reset_operators)
    check_start(app.graph(), job.found.config, job.found.objects, request=request, more=new)


def _as_last_run(job: StartpointJob, decision: StartDecision, record: CheckpointRecord) -> None:
    """Raise IncompatibleError if the application of the last checkpoint could not go on from an older one."""
    last = job.origin
    if last is None:
        return
    name = job.found.paths.root
    refuse_recreated(job.inputs, job.found.config, decision)
    check_layout(record, last.stores, last.task_count, job=name)
    kept_streams(record, last.section(STREAMS).layouts, clears_state=False, job=name)
