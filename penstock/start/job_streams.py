"""The systems and streams of a job, by its graph and its configuration."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from penstock import errors
from penstock.api.retention import StreamRetention
from penstock.api.serdes import ColumnSerde
from penstock.api.ssp import StreamPattern, SystemStream, SystemStreamPartition
from penstock.base.wording import counted, listed, owned_stream
from penstock.checkpoint.streams import CHANGELOG_STREAM
from penstock.config.kinds import PartitionRange
from penstock.config.model import JobConfig
from penstock.config.settings import StreamSettings, TaskSettings
from penstock.graph.specs import ApplicationGraph
from penstock.graph.store_declarations import side_input_of
from penstock.job.identity import OwnedStreams
from penstock.start.inputs import Grouping, group_inputs, matching, own_streams
from penstock.system.base import PartitionOffsets, RecordLimits, System, SystemAdmin
from penstock.system.contract.messages import partitions_with_messages
from penstock.system.registry import open_named

logger = logging.getLogger(__name__)

INTERMEDIATE = "an intermediate stream of the job, whose positions are in checkpoints"


@dataclass(frozen=True, slots=True)
class JobStreams:
    """The systems and streams of a job, and the admins to look at them."""

    inputs: tuple[SystemStream, ...]
    outputs: tuple[SystemStream, ...]
    systems: dict[str, System]
    admins: dict[str, SystemAdmin] = field(compare=False)
    broadcast: tuple[PartitionRange, ...] = ()
    least_tasks: int = 0
    retention: Mapping[SystemStream, StreamRetention] = field(default_factory=dict)
    """The retention of outputs, where the configuration has one."""
    intermediates: tuple[SystemStream, ...] = ()
    """The durable intermediate streams."""
    exactly_once: frozenset[SystemStream] = frozenset()
    """The outputs whose messages are published once each."""
    owed: tuple[SystemStream, ...] = ()
    """Streams that are no outputs any more, and that something is still to be written to."""
    given: Mapping[str, System] = field(default_factory=dict, compare=False, repr=False)
    """Systems that were open already, by name."""
    patterns: tuple[StreamPattern, ...] = ()
    """The patterns that found some of the inputs."""
    own: frozenset[SystemStream] = frozenset()
    """The streams that match no pattern, because the job writes them or uses them in another way."""

    @classmethod
    def open(cls, graph: ApplicationGraph, config: JobConfig, given: Mapping[str, System] | None = None) -> JobStreams:
        """`given` are systems that are open already, by name. Raises ConfigError as `used`."""
        found = cls.used(graph, config, given)
        return replace(found, admins={name: system.admin() for name, system in found.systems.items()})

    @classmethod
    def used(cls, graph: ApplicationGraph, config: JobConfig, given: Mapping[str, System] | None = None) -> JobStreams:
        """As `open`, without admins: no stream is looked at.

        Raises:
            ConfigError: a system is neither given nor configured, or refuses an option; a stream is used for two
                things; or its system cannot hold what the job writes to it.
        """
        inputs = tuple(op.stream for op in graph.inputs)
        dead_letter = config.task.dead_letter_stream
        outputs = tuple(spec.stream for spec in graph.outputs) + ((dead_letter,) if dead_letter else ())
        changelogs = {config.store(spec.name).changelog: spec.name for spec in graph.written_stores}
        intermediates = tuple(reader.stream for reader in graph.intermediates)
        exactly_once = frozenset(stream for stream in outputs if config.stream(stream).exactly_once)
        refusals = errors.Refusals("the streams of the application are refused")
        refusals.note_all(_shared(graph, config, outputs))
        refusals.note_all(_shared_intermediates(intermediates, dead_letter, changelogs))
        names = {stream.system for stream in (*inputs, *outputs, *changelogs, *intermediates, *graph.side_streams())}
        systems: dict[str, System] = {}
        for name in sorted(names):
            with refusals.noted():
                systems |= open_named({name}, config, given)
        refusals.note_all(_unfit_systems(systems, config, inputs, intermediates, exactly_once))
        refusals.check()
        return cls(
            inputs,
            outputs,
            systems,
            {},
            config.task.broadcast_inputs,
            config.job.intermediate_stream_partitions or 0,
            {stream: found for stream in outputs if (found := config.stream(stream).retention) is not None},
            intermediates,
            exactly_once,
            given=given or {},
            patterns=tuple(sorted({op.pattern for op in graph.inputs if op.pattern is not None})),
            own=own_streams(graph, config),
        )

    @property
    def fenced(self) -> tuple[SystemStream, ...]:
        """The streams that the job writes and that refuse what an older epoch appends."""
        written = self.outputs + self.intermediates + self.owed
        return tuple(stream for stream in written if self.systems[stream.system].fences)

    def named(self, failed: errors.FailedMessage) -> errors.FailedMessage:
        """The failure with the name of its message, if the system has names."""
        stream = SystemStream.parse(failed.stream)
        if failed.offset < 0 or stream.system not in self.admins:
            return failed
        ssp = SystemStreamPartition(stream.system, stream.stream, failed.partition)
        with suppress(errors.PenstockError, OSError):  # the failure is more important
            name = self.admins[stream.system].message_name(ssp, failed.offset, with_line=True)
            return replace(failed, name=name or "")
        return failed

    def new_matches(self) -> set[SystemStream]:
        """The streams that match patterns now and are no inputs."""
        found = matching(self.patterns, self.admins, self.own | {*self.inputs})
        return {stream for streams in found.values() for stream in streams}

    def check_left(self, read: Iterable[SystemStream]) -> None:
        """Check that streams which a pattern found before, and does not find now, are gone. Their positions are
        forgotten: a stream that was only missing in a list would be read again from its beginning.

        Args:
            read: the streams that a checkpoint has positions of.

        Raises:
            SystemAwayError: a system did not list a stream that it has.
        """
        for stream in sorted(set(read).difference(self.inputs, self.own)):
            if any(each.matches(stream) for each in self.patterns):
                try:
                    self.admins[stream.system].partition_count(stream.stream)
                except errors.NotFoundError:
                    logger.warning("`%s` was deleted: the job read it before, and its position is forgotten", stream)
                else:
                    raise errors.SystemAwayError(
                        f"the system `{stream.system}` has the stream `{stream}`, which this job has read before, and "
                        "did not name it in the list of its streams. Nothing was changed. Start the job again"
                    )

    def input_partitions(self) -> list[SystemStreamPartition]:
        """Every partition of every input. Raises NotFoundError if an input does not exist."""
        return [
            SystemStreamPartition(stream.system, stream.stream, partition)
            for stream in self.inputs
            for partition in range(self.admins[stream.system].partition_count(stream.stream))
        ]

    def group(self, ssps: Iterable[SystemStreamPartition]) -> Grouping:
        """Assign the inputs' partitions to tasks. Raises ConfigError as `group_inputs`."""
        return group_inputs(ssps, self.broadcast, self.least_tasks)

    def create_outputs(self, partitions: int, owned: OwnedStreams) -> dict[str, int]:
        """Partitions of every output; one that does not exist is created with as many as there are tasks.

        Args:
            partitions: how many tasks there are.
            owned: what the job's folder knows of the owners of streams.

        Raises:
            IncompatibleError: an output that exists has another retention than the configuration says.
            ConfigError: an output is a changelog, or its system cannot delete old messages.
        """
        counts = {}
        for stream in self.outputs:
            admin = self.admins[stream.system]
            try:
                counts[str(stream)] = admin.partition_count(stream.stream)
            except errors.NotFoundError:
                admin.create_stream(stream.stream, partitions, self.retention.get(stream))
                counts[str(stream)] = admin.partition_count(stream.stream)
                logger.info(
                    "created the output `%s`, which did not exist, with %s%s",
                    stream,
                    counted(counts[str(stream)], "partition"),
                    f"; it keeps its messages: {self.retention[stream]}" if stream in self.retention else "",
                )
            if stream in self.retention:
                admin.create_stream(stream.stream, counts[str(stream)], self.retention[stream])  # refuses another one
            if (owner := owned.keeps_from(stream, admin)) is not None:
                raise errors.ConfigError(
                    f"the output `{stream}` is {owned_stream(owner)} that only its owner writes: {owner}. Name another "
                    "output"
                )
        return counts

    def check_outputs(self) -> None:
        """Raise ConfigError if the system of an output says that it cannot be written. The output need not exist."""
        refusals = errors.Refusals("outputs cannot be written")
        for stream in self.outputs:
            with refusals.noted():
                self.admins[stream.system].check_writable(stream.stream)
        refusals.check()

    def record_limits(self) -> dict[str, RecordLimits]:
        """By exactly-once output, what its stream refuses of a message, if anything. They exist."""
        found = {str(own): self.admins[own.system].record_limits(own.stream) for own in self.exactly_once}
        return {name: limits for name, limits in found.items() if limits != RecordLimits()}

    def create_intermediates(self, tasks: int, owner: str, owned: OwnedStreams) -> frozenset[SystemStream]:
        """Make the durable intermediate streams with a partition for each task, where they are missing, and own them.

        Args:
            tasks: how many the job has.
            owner: the text by which streams name the job as their owner.
            owned: what the job's folder knows of that.

        Returns:
            The streams that were not the job's before, where the system keeps owners.

        Raises:
            IncompatibleError: a stream that exists has another number of partitions.
            ConfigError: it has another owner, or messages and no owner, or deletes old messages.
        """
        new: set[SystemStream] = set()
        for stream in self.intermediates:
            admin = self.admins[stream.system]
            try:
                admin.create_stream(stream.stream, tasks)
            except errors.IncompatibleError as error:
                raise errors.IncompatibleError(
                    f"{error}. An intermediate stream has a partition for each task of the job: name another stream in "
                    f"`through`, or delete this one (`penstock stream delete {stream}`)"
                ) from error
            if not self.systems[stream.system].keeps_owners:
                continue

            def check_new(stream: SystemStream = stream, admin: SystemAdmin = admin) -> None:
                _refuse_messages(stream, admin)
                new.add(stream)

            if (found := owned.own(stream, admin, owner, check_new)) != owner:
                raise errors.ConfigError(
                    f"the intermediate stream `{stream}` belongs to another owner: {found}. This is {owner}. Name "
                    "another stream in `through`. If the owner's job was deleted, "
                    f"`penstock stream delete {stream}` deletes what it left"
                )
        return frozenset(new)

    def intermediate_ends(self) -> dict[SystemStream, dict[int, PartitionOffsets]]:
        """The ends of every partition of every durable intermediate stream."""
        return {stream: self.admins[stream.system].offsets(stream.stream) for stream in self.intermediates}

    def identities(self) -> dict[SystemStream, str]:
        """The identities of the inputs. Raises NotFoundError if an input does not exist."""
        return self._identities(self.inputs)

    def output_identities(self) -> dict[SystemStream, str]:
        """The same of each exactly-once output. Raises NotFoundError if one does not exist."""
        return self._identities(self.exactly_once)

    def _identities(self, streams: Iterable[SystemStream]) -> dict[SystemStream, str]:
        found: dict[SystemStream, str] = {}
        refusals = errors.Refusals("streams are missing")
        for stream in streams:
            with refusals.noted():
                identity = self.admins[stream.system].stream_identity(stream.stream)
                if identity is not None:
                    found[stream] = identity
        refusals.check()
        return found

    def ends(self) -> dict[SystemStreamPartition, PartitionOffsets]:
        """The ends of every partition of every input."""
        return {
            SystemStreamPartition(stream.system, stream.stream, partition): ends
            for stream in self.inputs
            for partition, ends in self.admins[stream.system].offsets(stream.stream).items()
        }

    def without_startpoints(self, graph: ApplicationGraph, config: JobConfig) -> dict[SystemStream, str]:
        """The streams that the job uses and that take no startpoint, with what they are."""
        changelogs = {
            config.store(spec.name).changelog: f"the changelog of store `{spec.name}`" for spec in graph.written_stores
        }
        outputs = dict.fromkeys(self.outputs, "an output of the job, which does not read it")
        between = dict.fromkeys(self.intermediates, INTERMEDIATE)
        side = {stream: side_input_of(spec.name for spec in specs) for stream, specs in graph.side_streams().items()}
        named = {**side, **changelogs, **outputs, **between}
        return {stream: what for stream, what in named.items() if stream not in self.inputs}

    def check_columns(self, graph: ApplicationGraph) -> None:
        """Raise ConfigError if an input declares a column that its newest messages lack: it would be null in all."""
        refusals = errors.Refusals("inputs lack columns")
        for op in graph.inputs:
            if isinstance(op.value_serde, ColumnSerde):
                names = op.value_serde.schema.names
                missing = self.admins[op.stream.system].missing_columns(op.stream.stream, names)
                for name in missing:
                    error = errors.ConfigError(
                        f"the newest file of input `{op.stream}` has no column `{name}`, which the application "
                        "declares: it would be null everywhere. Correct its name, or leave it out of ps.Columns()"
                    )
                    refusals.note(error)
        refusals.check()

    def keeps_order(self, stream: SystemStream) -> bool:
        """True if the system of an input keeps the order of its messages across partitions."""
        return self.admins[stream.system].keeps_order(stream.stream)

    def close(self) -> None:
        """Close the admins."""
        for admin in self.admins.values():
            admin.close()


def _shared(
    graph: ApplicationGraph, config: JobConfig, outputs: Collection[SystemStream]
) -> Iterator[errors.ConfigError]:
    """Outputs that the application uses for something else."""
    dead_letter = config.task.dead_letter_stream
    if len(set(outputs)) != len(outputs):
        yield errors.ConfigError(f"task.dead.letter.stream `{dead_letter}` is an output of the application as well")
    for spec in graph.written_stores:
        settings = config.store(spec.name)
        if settings.changelog in outputs and CHANGELOG_STREAM in settings.backup_factories:
            yield errors.ConfigError(
                f"`{settings.changelog}` is an output and the changelog of store `{spec.name}`: set "
                f"`stores.{spec.name}.changelog` to another stream"
            )


def _shared_intermediates(
    intermediates: Iterable[SystemStream], dead_letter: SystemStream | None, changelogs: Mapping[SystemStream, str]
) -> Iterator[errors.ConfigError]:
    """Intermediate streams that the configuration uses for something else."""
    for stream in intermediates:
        if stream == dead_letter:
            yield errors.ConfigError(
                f"task.dead.letter.stream `{stream}` is an intermediate stream of the application as well"
            )
        if stream in changelogs:
            yield errors.ConfigError(
                f"`{stream}` is an intermediate stream and the changelog of store `{changelogs[stream]}`: name another "
                "stream in `through`"
            )


def _unfit_systems(
    systems: Mapping[str, System],
    config: JobConfig,
    inputs: Iterable[SystemStream],
    intermediates: Iterable[SystemStream],
    exactly_once: Iterable[SystemStream],
) -> Iterator[errors.ConfigError]:
    """Systems that were opened, and cannot do what is wanted of them."""
    for stream in intermediates:
        if stream.system in systems and not systems[stream.system].reports_appended:
            yield errors.ConfigError(
                f"`{stream}` cannot be an intermediate stream: the system `{stream.system}` does not say which offsets "
                "the records of a batch got (`System.reports_appended`). Name a stream of another system in "
                "`through`, or leave `through` out"
            )
    opened = [systems[stream.system] for stream in inputs if stream.system in systems]
    if config.task.commit_group and not any(system.shows_positions for system in opened):
        yield errors.ConfigError(
            f"`{TaskSettings.commit_group.name}` = `{config.task.commit_group}`, and no input is of a system that has "
            "consumer groups, as Kafka: leave it out"
        )
    for stream in sorted(exactly_once):
        if stream.system in systems and (error := forgetful(stream, systems[stream.system])) is not None:
            yield error


def _refuse_messages(stream: SystemStream, admin: SystemAdmin) -> None:
    """Raise ConfigError if a stream without an owner has messages: only the job's may be in it, which it deletes."""
    if held := [str(partition) for partition in partitions_with_messages(admin.offsets(stream.stream))]:
        raise errors.ConfigError(
            f"the stream `{stream}` has messages that this job did not write (partition {listed(held)}), and an "
            "intermediate stream is written and deleted by its job alone. Name another stream in `through`. If nobody "
            f"needs these messages, delete the stream: `penstock stream delete {stream}`"
        )


def forgetful(stream: SystemStream, system: System) -> errors.ConfigError | None:
    """The refusal, if no output of the system can be exactly once."""
    if system.keeps_progress:
        return None
    name = StreamSettings.output_guarantee.full(str(stream))
    return errors.ConfigError(
        f"`{name}`: the system `{system.name}` cannot record the progress of publishing in one step with the messages "
        "(`System.keeps_progress`), so nothing in it is exactly once. Remove the key, or name an output of another "
        "system"
    )
