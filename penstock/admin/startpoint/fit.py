"""Checks that an application can go on from the checkpoint that startpoints choose, before they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.admin.startpoint.inputs import StartpointJob
from penstock.application.application import Application
from penstock.base.wording import argument
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.streams import STREAMS
from penstock.errors import IncompatibleError
from penstock.start.layout import check_layout
from penstock.start.plan import StartRequest, resettable
from penstock.start.positions import kept_streams, refuse_recreated
from penstock.start.startpoints.decide import StartDecision
from penstock.start.startpoints.request import StartpointRequest


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
