"""The table of the versions of a task's checkpoint (SEP-28). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions import changelog_marker
from penstock.checkpoint.versions.v1 import FormatV1
from penstock.checkpoint.versions.v2 import FormatV2
from penstock.checkpoint.versions.value import CheckpointFormat, Markers
from penstock.errors import ConfigError

FORMATS: Mapping[int, CheckpointFormat] = {each.version: each for each in (FormatV2(), FormatV1())}
"""All versions; one that can hold more comes first."""


def format_of(version: int) -> CheckpointFormat:
    """The format of a version. Raises ConfigError if there is none."""
    if version not in FORMATS:
        raise ConfigError(f"there is no checkpoint version {version}; known: {', '.join(map(str, FORMATS))}")
    return FORMATS[version]


def last_processed(next_offsets: Mapping[SystemStreamPartition, int]) -> dict[SystemStreamPartition, str]:
    """As Samza's checkpoints have it; where nothing was processed they have nothing."""
    return {ssp: str(offset - 1) for ssp, offset in next_offsets.items() if offset > 0}


def build_versions(
    checkpoint_id: CheckpointId,
    offsets: Mapping[SystemStreamPartition, str],
    markers: Markers,
    versions: Iterable[int],
) -> dict[str, str]:
    """One task's values by version, as a record holds them and in the order of `task.checkpoint.write.versions`.

    `offsets` are the last processed ones. Markers of the `changelog-stream` backend are written under Samza's name
    of it; in V1 they become positions among the offsets.

    Raises:
        ConfigError: a store would have no marker in any of these versions: V1 has those of `changelog-stream` only.
        CorruptError: a marker of `changelog-stream` is not one.
    """
    formats = [format_of(version) for version in versions]
    written = {str(each.version): each.write(checkpoint_id, offsets, markers) for each in formats}
    stores = {store for own in markers.values() for store in own}
    lost = sorted(stores.difference(*(each.restorable(markers) for each in formats)))
    if lost:
        raise ConfigError(
            f"checkpoint {checkpoint_id} could not restore the stores {', '.join(f'`{store}`' for store in lost)}: "
            f"version 1 holds markers of `{changelog_marker.BACKEND}` only, and only where a store's history begins "
            "with its stream. Add 2 to task.checkpoint.write.versions"
        )
    return written


def versions_of(record: CheckpointRecord) -> frozenset[int]:
    """The known versions that every task of the checkpoint has; those of a later Penstock do not count."""
    return frozenset(
        version
        for version in FORMATS
        if all(str(version) in record.tasks.get(task, {}) for task in range(record.task_count))
    )


def samza_value(record: CheckpointRecord, task: int, version: int) -> str | None:
    """One task's value as Samza writes it: the one in the record, or one made of a better version; None if neither is
    there. What only the better version can say is then left out.

    Raises:
        CorruptError: the value of the better version does not decode.
    """
    own = record.tasks.get(task, {})
    if str(version) in own:
        return own[str(version)]
    for better in FORMATS.values():
        if better.version == version:
            return None
        if str(better.version) in own:
            read = better.read(own[str(better.version)], {})
            processed = {ssp: offset for ssp, offset in read.offsets.items() if offset is not None}
            return format_of(version).write(record.id, processed, read.markers)
    return None
