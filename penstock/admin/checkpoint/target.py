"""The job that a checkpoint is imported into: as its last checkpoint has it or, without one, its application."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from penstock.admin.jobs import FoundJob
from penstock.admin.questions import Questions, answer_or_problem
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.application.application import Application
from penstock.base.wording import argument
from penstock.checkpoint.edit import CheckpointContent, content_of
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.samza import SamzaCheckpoint
from penstock.checkpoint.task_versions import refuse_unknown
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, NotFoundError, PenstockError
from penstock.system.base import PartitionOffsets
from penstock.system.registry import open_system
from penstock.wing import known_sections

NAME_IT = f"a job without a checkpoint needs its application: name it with {argument('app')}"


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """The ends of streams, and the reason for each stream whose ends are unknown."""

    ends: Mapping[SystemStreamPartition, PartitionOffsets]
    unknown: Mapping[SystemStream, str]
    identities: Mapping[SystemStream, str] = field(default_factory=dict)
    missing: frozenset[SystemStream] = frozenset()
    """The streams of `unknown` that do not exist."""

    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"the offsets of `{stream}` were not checked ({why}); the job's next start checks them"
            for stream, why in self.unknown.items()
        )


def stream_ends(config: JobConfig, streams: Iterable[SystemStream]) -> StreamEnds:
    """Ask the systems for the ends and the identities of the streams, of all at the same time. Each system has its own
    time limit: what is not known then is not checked."""
    questions = Questions(within_s=None)
    answers = {each: questions.put(each.system, partial(_ends_of, each, config)) for each in sorted(set(streams))}
    questions.await_answers()
    ends: dict[SystemStreamPartition, PartitionOffsets] = {}
    unknown: dict[SystemStream, str] = {}
    identities: dict[SystemStream, str] = {}
    missing = set[SystemStream]()
    for stream, answer in answers.items():
        found = answer_or_problem(answer)
        if isinstance(found, PenstockError):
            unknown[stream] = str(found)
            if isinstance(found, NotFoundError):
                missing.add(stream)
            continue
        identity, own = found
        ends |= {SystemStreamPartition(stream.system, stream.stream, number): end for number, end in own.items()}
        if identity is not None:
            identities[stream] = identity
    return StreamEnds(ends, unknown, identities, frozenset(missing))


def _ends_of(stream: SystemStream, config: JobConfig) -> tuple[str | None, Mapping[int, PartitionOffsets]]:
    with closing(open_system(config.system(stream.system)).admin()) as admin:
        return admin.stream_identity(stream.stream), admin.offsets(stream.stream)


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """The job of an import. `base` has the fields that stay; `before` is its content now, None without a checkpoint."""

    config: JobConfig
    base: CheckpointRecord
    before: CheckpointContent | None
    inputs: Mapping[int, Collection[SystemStreamPartition]]
    ends: StreamEnds

    def changelogs(self, task: int) -> Mapping[SystemStreamPartition, str]:
        return self.config.changelog_partitions(self.base.stores, task)

    def covering(self, found: SamzaCheckpoint) -> tuple[ImportTarget, list[str]]:
        """The target with the stores that the checkpoint is to cover, and what to tell of the others: all that the
        last one covers; without one, those of the application that the file has markers of."""
        new = sorted(self.base.stores.keys() - found.stores)
        if self.before is not None or not new:
            return self, []
        covered = {store: layout for store, layout in self.base.stores.items() if store in found.stores}
        notes = [f"the file has no marker of store `{store}`: the store begins empty" for store in new]
        return replace(self, base=replace(self.base, stores=covered)), notes

    def unusable(self, found: SamzaCheckpoint) -> dict[str, str]:
        """The backends in the file that cannot restore a store of this job, with the reasons.

        A `module:Class` is imported only if the job names it already, never because a file does.
        """
        from penstock.state.backends.registry import backend_factory  # late: only an import asks for backends

        trusted = {name for task in (self.before.markers if self.before else {}).values() for name in task}
        for store in self.base.stores:
            settings = self.config.store(store)
            trusted |= {*settings.backup_factories, *settings.restore_factories}
        reasons = {}
        for name in sorted(found.backends):
            if ":" in name and name not in trusted:
                reasons[name] = "neither the configuration nor the job's last checkpoint names this backend"
                continue
            try:
                kept_in = backend_factory(name).kept_in
            except ConfigError as error:
                reasons[name] = str(error)
            else:
                if self.before is None and kept_in == "job-folder":
                    reasons[name] = "they refer to the folder of the job that wrote them, and this job is new"
        return reasons

    def finds_everywhere(self, found: SamzaCheckpoint) -> bool:
        """True if all markers of the file name things that any job finds, and nothing in their own job's folder."""
        from penstock.state.backends.registry import built_in

        own = built_in()
        return all(name in own and own[name].kept_in == "system" for name in found.backends)


def find_target(found: FoundJob, view: LogView) -> ImportTarget:
    """The job as its newest checkpoint has it, in any version, or else its application.

    Raises:
        ConfigError: there is neither.
        IncompatibleError: the checkpoint has a section that is needed and not known here.
        NotFoundError: an input of the application does not exist.
    """
    base = next(reversed(view.restorable), None)
    if base is None:
        if found.application is None:
            raise ConfigError(f"job `{found.paths.root}`: {NAME_IT}")
        return _described_by(found.config, found.application)
    refuse_unknown(base, known_sections())
    inputs = {task: tuple(base.next_offsets.get(task, ())) for task in range(base.task_count)}
    ends = stream_ends(found.config, {ssp.system_stream for own in inputs.values() for ssp in own})
    before = content_of(base, lambda task: found.config.changelog_partitions(base.stores, task))
    return ImportTarget(found.config, base, before, inputs, ends)


def before_the_first(tasks: int, stores: Mapping[str, str]) -> CheckpointRecord:
    """The record that the first checkpoint of a job is made of, which no log has."""
    return CheckpointRecord(
        id=CheckpointId(0, 0),
        parent=None,
        epoch=0,
        run_id="",
        writer="",
        task_count=tasks,
        batch=0,
        batch_time_ms=0,
        stores=stores,
        next_offsets={},
        tasks={},
    )


def _described_by(config: JobConfig, app: Application) -> ImportTarget:
    # Late: only an import into a job that has not run needs what plans a start.
    from penstock.admin.startpoint.inputs import application_inputs
    from penstock.start.layout import store_layout
    from penstock.start.part import complete

    inputs = application_inputs(config, app)
    base = before_the_first(len(inputs.tasks), store_layout(complete(app.graph(), config)))
    return ImportTarget(config, base, None, inputs.tasks, StreamEnds(inputs.ends, {}))
