"""The stores of a job that no checkpoint has, because the job only reads them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.admin.jobs import FoundJob
from penstock.api.ssp import SystemStream
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import NotFoundError
from penstock.graph.store_declarations import side_input_of
from penstock.side.wing import SideStoreFacts, side_store_board


def side_stores(job: FoundJob) -> tuple[SideStoreFacts, ...]:
    """The stores that the last run only reads, and their sources. Raises CorruptError or IncompatibleError."""
    found = side_store_board(job.objects, job.paths).get()
    return () if found is None else found.stores


def refuse_side_stores(job: FoundJob, record: CheckpointRecord, stores: Iterable[str]) -> None:
    """Raise NotFoundError for a store that the checkpoint does not have because the job only reads it."""
    missing = {store for store in stores if store not in record.stores}
    if not missing:
        return
    for each in side_stores(job):
        if each.store in missing:
            raise NotFoundError(each.why_not_kept)


def refuse_side_inputs(job: FoundJob, record: CheckpointRecord, streams: Iterable[SystemStream]) -> None:
    """Raise NotFoundError for a stream that has no position in the checkpoint because it is a side input."""
    read = {ssp.system_stream for own in record.next_offsets.values() for ssp in own}
    missing = {str(stream) for stream in streams if stream not in read}
    if not missing:
        return
    for each in side_stores(job):
        for stream in missing.intersection(each.side_inputs):
            raise NotFoundError(f"`{stream}` is {side_input_of([each.store])}")
