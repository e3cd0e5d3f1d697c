"""Asks for a drain, as Samza's DrainUtils does."""

from __future__ import annotations

from penstock.api.requests import NEXT_RUN, DrainMode, DrainNotification
from penstock.checkpoint.log import CheckpointLog
from penstock.config.settings import OtherSettings
from penstock.config.values.kinds import RefusedError
from penstock.drain.requests import DrainRequests
from penstock.errors import ConfigError, NotFoundError
from penstock.job.lease import LeaseState
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore


def write_drain_notification(
    objects: ObjectStore,
    paths: JobPaths,
    mode: DrainMode = DrainMode.DEFAULT,
    *,
    run_id: str | None = None,
    only_run: str | None = None,
    operators: tuple[str, ...] = (),
) -> DrainNotification:
    """Ask a run of a job to drain. It may be running, or start later. The request is durable when this returns.

    Args:
        run_id: the run; None: the one that owns the job, or the next one if there is none.
        only_run: the id of the run that must own the job.
        operators: in the mode OPERATORS, the ids of those that drain.

    Returns:
        The notification. Its run id is `*` if the next run is to drain.

    Raises:
        ConfigError: no run can have this id.
        NotFoundError: nothing is in flight, the named run has drained, another run has the job, or another run than
            `only_run` owns it. Nothing was written.
        PenstockError: the store failed.
    """
    target = drain_target(objects, paths, run_id)
    if only_run not in (None, target):
        raise NotFoundError(f"run {only_run} of job {paths.root} has ended")
    return DrainRequests(objects, paths).ask(target, mode, operators)


def drain_target(objects: ObjectStore, paths: JobPaths, run_id: str | None = None, *, running: bool = True) -> str:
    """The run id that a request to drain gets; see `write_drain_notification`.

    Args:
        run_id: the run; None: the one that owns the job, or the next one.
        running: False if no driver has the job: a run without a checkpoint then never comes again.
    """
    if run_id is not None:
        try:
            OtherSettings.run_id.kind.read(run_id)
        except RefusedError:
            raise ConfigError(f"no run has the id `{run_id}`: expected {OtherSettings.run_id.kind.expected}") from None
    view = CheckpointLog(objects, paths).read("report")
    present, latest = present_run(objects, paths) if running else view.unfinished_run, view.latest
    if present is not None and run_id in (None, present):
        return present
    if present is not None and running and _holder(objects, paths) == present:
        raise NotFoundError(
            f"job {paths.root} belongs to run {present}, not to run {run_id}. Ask run {present} to drain"
        )
    if present is None and latest is not None and latest.is_closed and run_id in (None, latest.run_id):
        how = "drained" if latest.ended == "drained" else "brought its stream to the end"
        raise NotFoundError(
            f"job {paths.root} has no run that could drain: its last run has {how}. Nothing is in flight, and the next "
            "start may be of a changed program"
        )
    return run_id or NEXT_RUN


def _holder(objects: ObjectStore, paths: JobPaths) -> str | None:
    """The run of the driver that holds the job's lease, as far as this process can see."""
    try:
        lease = LeaseState.decode(objects.get(paths.lease), paths.lease)
    except NotFoundError:
        return None
    return None if lease.released or lease.holder.known_dead() else lease.holder.run_id


def present_run(objects: ObjectStore, paths: JobPaths) -> str | None:
    """The id of the run that owns the job: it runs, is about to write its start checkpoint, or is continued by the
    next start. None if there is none."""
    view = CheckpointLog(objects, paths).read("report")
    if view.unfinished_run is not None or view.owner is None:
        return view.unfinished_run
    begins = view.latest is None or view.latest.epoch < view.owner.epoch
    return view.owner.run_id if begins and _holder(objects, paths) == view.owner.run_id else None
