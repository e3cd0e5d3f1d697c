"""What the systems and the configuration say of the streams of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.model import JobConfig
from penstock.errors import PenstockError
from penstock.system.base import PartitionOffsets
from penstock.system.registry import open_system


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """What the systems know of streams, and why they know nothing of others."""

    ends: Mapping[SystemStreamPartition, PartitionOffsets]
    unknown: Mapping[SystemStream, str]
    identities: Mapping[SystemStream, str] = field(default_factory=dict)

    def warnings(self) -> tuple[str, ...]:
        """What cannot be checked."""
        return tuple(
            f"the offsets of `{stream}` were not checked ({why}); the job's next start checks them"
            for stream, why in self.unknown.items()
        )


def stream_ends(config: JobConfig, streams: Iterable[SystemStream]) -> StreamEnds:
    """Ask the systems for the ends and the identities of the streams."""
    ends: dict[SystemStreamPartition, PartitionOffsets] = {}
    unknown: dict[SystemStream, str] = {}
    identities: dict[SystemStream, str] = {}
    for stream in sorted(set(streams)):
        try:
            admin = open_system(config.system(stream.system)).admin()
            try:
                identity = admin.stream_identity(stream.stream)
                found = admin.offsets(stream.stream)
            finally:
                admin.close()
        except PenstockError as error:
            unknown[stream] = str(error)
        else:
            ends |= {SystemStreamPartition(stream.system, stream.stream, number): end for number, end in found.items()}
            if identity is not None:
                identities[stream] = identity
    return StreamEnds(ends, unknown, identities)


def changelogs(config: JobConfig, record: CheckpointRecord, task: int) -> dict[SystemStreamPartition, str]:
    """Which partition of which changelog stream is which store's, of a task of the checkpoint."""
    return config.changelog_partitions(record.stores, task)
