"""Whose changelog a stream is, and which changelogs a job has."""

from __future__ import annotations

import logging
from contextlib import closing

from penstock.admin.jobs import FoundJob
from penstock.api.ssp import SystemStream
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions import changelog_marker
from penstock.checkpoint.versions.changelog_marker import ChangelogStreamMarker
from penstock.checkpoint.versions.markers import needed_markers
from penstock.errors import PenstockError
from penstock.state.backends.changelog_stream.owner import is_owned_by
from penstock.system.registry import open_system

logger = logging.getLogger(__name__)


def changelogs_of(found: FoundJob, uid: str) -> tuple[str, ...]:
    """The streams that the job with this uid owns, in every system that records owners and can be reached."""
    streams: list[str] = []
    for name in found.config.system_names:
        try:
            streams += _owned(found, name, uid)
        except PenstockError as error:
            logger.info("system %s was not searched for the job's changelog streams: %s", name, error)
    return tuple(streams)


def is_restored_from(stream: SystemStream, record: CheckpointRecord) -> bool:
    """Whether a store's state at the checkpoint is in the stream."""
    streamed = (needed_markers(record, task, {}).get(changelog_marker.BACKEND, {}) for task in record.tasks)
    texts = (text for stores in streamed for own in stores.values() for text in own)
    return any(ChangelogStreamMarker.deserialize(text).ssp.system_stream == stream for text in texts)


def _owned(found: FoundJob, name: str, uid: str) -> list[str]:
    system = open_system(found.config.system(name))
    if not system.keeps_owners:
        return []
    with closing(system.admin()) as admin:
        owners = admin.owners()
    return [f"{name}.{stream}" for stream, owner in sorted(owners.items()) if is_owned_by(owner, found.paths.root, uid)]
