"""The systems and streams of a job, by its graph and its configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.api.graph import ApplicationGraph
from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.changelog_marker import BACKEND
from penstock.config.broadcast import PartitionRange
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, NotFoundError
from penstock.plan.grouping import Grouping, group_inputs
from penstock.system.base import PartitionOffsets, System, SystemAdmin
from penstock.system.registry import open_system


@dataclass(frozen=True, slots=True)
class JobStreams:
    """The systems and streams of a job, and the admins to look at them."""

    inputs: tuple[SystemStream, ...]
    outputs: tuple[SystemStream, ...]
    systems: Mapping[str, System]
    admins: Mapping[str, SystemAdmin] = field(compare=False)
    broadcast: tuple[PartitionRange, ...] = ()
    least_tasks: int = 0
    retention: Mapping[SystemStream, StreamRetention] = field(default_factory=dict)
    """How long outputs keep their messages, where the configuration says it."""

    @classmethod
    def open(cls, graph: ApplicationGraph, config: JobConfig, given: Mapping[str, System] | None = None) -> JobStreams:
        """`given` are systems that are open already, by name. Raises ConfigError for a stream of a system that is
        neither given nor configured."""
        inputs = tuple(op.stream for op in graph.inputs)
        dead_letter = config.task.dead_letter_stream
        outputs = tuple(spec.stream for spec in graph.outputs) + ((dead_letter,) if dead_letter else ())
        if len(set(outputs)) != len(outputs):
            raise ConfigError(f"task.dead.letter.stream `{dead_letter}` is an output of the application as well")
        changelogs = [config.store(spec.name).changelog for spec in graph.stores]
        for spec, changelog in zip(graph.stores, changelogs, strict=True):
            if changelog in outputs and BACKEND in config.store(spec.name).backup_factories:
                raise ConfigError(
                    f"`{changelog}` is an output and the changelog of store `{spec.name}`: set "
                    f"`stores.{spec.name}.changelog` to another stream"
                )
        names = {stream.system for stream in (*inputs, *outputs, *changelogs)}
        opened = given or {}
        systems = {name: opened[name] if name in opened else open_system(config.system(name)) for name in names}
        admins = {name: system.admin() for name, system in systems.items()}
        least = config.job.intermediate_stream_partitions or 0
        retention = {stream: found for stream in outputs if (found := config.retention(stream)) is not None}
        return cls(inputs, outputs, systems, admins, config.task.broadcast_inputs, least, retention)

    @property
    def fenced_outputs(self) -> tuple[SystemStream, ...]:
        """The outputs that refuse what an older epoch appends."""
        return tuple(stream for stream in self.outputs if self.systems[stream.system].fences)

    def input_partitions(self) -> list[SystemStreamPartition]:
        """Every partition of every input. Raises NotFoundError if an input does not exist."""
        return [
            SystemStreamPartition(stream.system, stream.stream, partition)
            for stream in self.inputs
            for partition in range(self.admins[stream.system].partition_count(stream.stream))
        ]

    def group(self, ssps: Iterable[SystemStreamPartition]) -> Grouping:
        """Which task reads which of the inputs' partitions. Raises ConfigError as `group_inputs`."""
        return group_inputs(ssps, self.broadcast, self.least_tasks)

    def create_outputs(self, partitions: int) -> dict[str, int]:
        """Partitions of every output; one that does not exist is created with as many as there are tasks.

        Raises:
            IncompatibleError: an output that exists has another retention than the configuration says.
            ConfigError: an output is a changelog, or its system cannot delete old messages.
        """
        counts = {}
        for stream in self.outputs:
            admin = self.admins[stream.system]
            try:
                counts[str(stream)] = admin.partition_count(stream.stream)
            except NotFoundError:
                admin.create_stream(stream.stream, partitions, self.retention.get(stream))
                counts[str(stream)] = admin.partition_count(stream.stream)
            if stream in self.retention:
                admin.create_stream(stream.stream, counts[str(stream)], self.retention[stream])  # refuses another one
            if (owner := admin.owner(stream.stream)) is not None:
                raise ConfigError(f"the output `{stream}` is a changelog that only its owner writes: {owner}")
        return counts

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
            config.store(spec.name).changelog: f"the changelog of store `{spec.name}`" for spec in graph.stores
        }
        outputs = dict.fromkeys(self.outputs, "an output of the job, which does not read it")
        return {stream: what for stream, what in {**changelogs, **outputs}.items() if stream not in self.inputs}

    def close(self) -> None:
        """Close the admins."""
        for admin in self.admins.values():
            admin.close()
