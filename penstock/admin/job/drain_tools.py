"""DrainUtils and DrainMonitor of Samza's proposal, for controllers of their own. `drain` does the same in one call."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from penstock.admin.job.audit import audited
from penstock.admin.jobs import FoundJob
from penstock.api.drain import NEXT_RUN, DrainMode, DrainNotification
from penstock.drain.monitor import DrainMonitor as Monitor
from penstock.drain.utils import cleanup, cleanup_all, drain_target, present_run, write_drain_notification
from penstock.errors import NotFoundError

_POLL_MS = 5000


class DrainUtils:
    """Writes and deletes the requests to drain a job, as Samza's DrainUtils. They are in the job's metadata.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     asked = admin.DrainUtils.write_drain_notification(job)
        ...     [each.uuid == asked for each in admin.DrainUtils.notifications(job)], admin.DrainUtils.cleanup_all(job)
        ([True], 1)
    """

    @staticmethod
    def write_drain_notification(
        job: FoundJob,
        mode: DrainMode = DrainMode.DEFAULT,
        *,
        run_id: str | None = None,
        operators: Sequence[str] = (),
    ) -> UUID:
        """Ask a run to drain. The request is durable when this returns; each call writes another one.

        Args:
            job: the job.
            mode: how the run drains.
            run_id: the run, by its `app.run.id`; None: the one that owns the job, or the next one if there is none.
            operators: in the mode OPERATORS, the ids of those that drain. A run whose application lacks one deletes
                the request, and logs a warning.

        Returns:
            The uuid of the request.

        Raises:
            ConfigError: no run can have this id, or the operators do not fit the mode. Nothing was written.
            NotFoundError: nothing is in flight, the named run has drained, or another run has the job. Nothing was
                written.
        """
        target = drain_target(job.objects, job.paths, run_id)
        with audited(job, "drain", {"run": "the next one" if target == NEXT_RUN else target}):
            asked = write_drain_notification(job.objects, job.paths, mode, run_id=run_id, operators=tuple(operators))
        return asked.uuid

    @staticmethod
    def notifications(job: FoundJob) -> tuple[DrainNotification, ...]:
        """The requests that the job has, ordered by uuid. One for the next run has that run's id once it obeys.

        Args:
            job: the job.
        """
        return job.drains.find().notifications

    @staticmethod
    def cleanup(job: FoundJob, run_id: str) -> int:
        """Delete the requests of one run, and return how many there were. A run that drains goes on without them.

        Args:
            job: the job.
            run_id: the run; `*` for requests that wait for the next one.
        """
        with audited(job, "drain cleanup", {"run": run_id}):
            return cleanup(job.objects, job.paths, run_id)

    @staticmethod
    def cleanup_all(job: FoundJob) -> int:
        """Delete all requests of the job, and return how many there were.

        Args:
            job: the job.
        """
        with audited(job, "drain cleanup", {"run": "all"}):
            return cleanup_all(job.objects, job.paths)


class DrainMonitor(Monitor):
    """Looks for a request to drain one run, on a separate thread, as Samza's DrainMonitor. It calls back once, from
    that thread, and then stops. A store that fails delays the answer and ends nothing.

    A run has such a monitor already. This one is for programs beside it, such as one that stops producers when a drain
    begins. It looks as long as the job is open.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     monitor = admin.DrainMonitor(job, "v1")
        ...     monitor.register_drain_callback(lambda: print("it drains")), monitor.look(), monitor.state.name
        (True, False, 'INIT')
    """

    def __init__(self, job: FoundJob, run_id: str | None = None, interval_ms: int = _POLL_MS) -> None:
        """Make a monitor that does not look yet.

        Args:
            job: the job. It has to stay open while the monitor runs.
            run_id: the run; None: the one that owns the job now.
            interval_ms: the time between two looks, in milliseconds.

        Raises:
            NotFoundError: no run owns the job, and none was named.
            ConfigError: the interval is less than 1.
        """
        run = run_id or present_run(job.objects, job.paths)
        if run is None:
            raise NotFoundError(f"no run owns job {job.paths.root} now: name the run that is to be watched")
        super().__init__(job.drains, run, interval_ms)
