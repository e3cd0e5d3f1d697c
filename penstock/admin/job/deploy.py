"""Lets a job take over from another one, exactly at one of its checkpoints.

The new job is a fork that makes the batches of the old one, with its output held back. Once it has caught up, the old
one is asked to stop, and its last checkpoint is followed by a record that hands over. That record is the only decision:
before it, the old job is in charge, and after it, the new one, whichever process dies.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from penstock.admin.job.charge import (
    DeployStep,
    NotYetError,
    decide,
    hand_over,
    refuse_held_changelogs,
    refuse_to_hand_over,
    take_back,
    take_over,
    without_stores,
)
from penstock.admin.job.delete import delete_job
from penstock.admin.job.fork import fork
from penstock.admin.job.logs import audited, this_process
from penstock.admin.jobs import FoundJob
from penstock.admin.state.repartition import Mover, plan_with, repartition
from penstock.application.application import Application
from penstock.base.plugins import HOSTS, load
from penstock.base.wording import listed
from penstock.checkpoint.forks import read_home
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import behind_latest
from penstock.config.model import JobConfig
from penstock.config.settings import JobSettings
from penstock.deploy.wing import DEPLOY, handed_to
from penstock.errors import ConfigError, FencedError, IncompatibleError, NotFoundError, RetryableError
from penstock.graph.stores import own_stores
from penstock.job.commands import StopRequests
from penstock.job.lease import LeaseHeldError, LeaseState, LeaseVerdict, Sighting, judge
from penstock.job.paths import JobPaths
from penstock.replay.wing import REPLAY, FollowProgress
from penstock.shadow.wing import SHADOW
from penstock.start.plan import resettable

if TYPE_CHECKING:
    from penstock.driver.job import Job

logger = logging.getLogger(__name__)

_FORK_TRIES = 5
_TELL_SECONDS = 60.0
_FRESH_SECONDS = 5.0
"""A look of the new job at the log of the old one counts for so long."""


class Follower(Protocol):
    """The run of the new job in this process."""

    @property
    def following(self) -> FollowProgress | None:
        """The progress on the way of the old job."""

    def begin_again(self) -> None:
        """End the run with a commit, and start again with the configuration of `Deployment.begin`."""


class Deployment:
    """A job that takes over from another one.

    The process that runs the new job has it: it calls `start`, and then `step` often, while the job runs. A process
    that dies leaves one of the two jobs in charge. Another deployment then does the rest; once the new job is in
    charge, a deployment is a start like any other.

    Example:
        >>> with admin.open_job("flights") as old:  # doctest: +SKIP
        ...     deployment = admin.Deployment(old, load_config("job.yaml", {"job.name": "flights-2"}), app)
        ...     job = deployment.start()
        ...     while not job.await_termination(0.1):
        ...         deployment.step(job)
    """

    def __init__(
        self,
        old: FoundJob,
        new: JobConfig,
        app: Application,
        *,
        from_checkpoint: str | None = None,
        tasks: int | None = None,
        reset_operators: Sequence[str] = (),
        rollback: bool = False,
        mover: Callable[[JobConfig], Mover] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            old: the job that is to hand over. It may run.
            new: the configuration of the job that is to take over, which has another name, in the same root.
            app: its application.
            from_checkpoint: the checkpoint of the old job to begin with, by its id or label; the last one, if None.
            tasks: the number of tasks of the new job; that of the old one, if None.
            reset_operators: the operators whose state is not taken along, such as a window that the application does
                not have any more.
            rollback: the new job is one that has handed over to the old one before, and comes back.
            mover: moves the state to another number of tasks; this process does, if None.
            clock: the monotonic clock, in seconds.

        Raises:
            ConfigError: both are the same job, or a shadow.
        """
        self.old = old
        self.paths = JobPaths(new.job.name, new.job.id)
        if self.paths == old.paths:
            raise ConfigError(
                f"job `{old.paths.root}` cannot take over from itself: give the new job another name, as `-c "
                f"{JobSettings.name.name}={old.paths.name}-2`"
            )
        if new.job.root != old.config.job.root:
            raise ConfigError(f"both jobs need the same `{JobSettings.root.name}`: a fork is in the root of its parent")
        if new.job.shadow_enabled or new.job.replay_follows is not None:
            raise ConfigError(f"a deployment decides by itself when the output of `{self.paths.root}` is held back")
        self.config = new if tasks is None else new.put(JobSettings.intermediate_stream_partitions, tasks)
        self.held = self.config.without_resets().put(JobSettings.shadow_enabled, True)
        self.held = self.held.put(JobSettings.replay_follows, old.paths.root)
        self._app = app
        self._from = from_checkpoint
        self._tasks = tasks
        self._reset = tuple(reset_operators)
        self._rollback = rollback
        self._mover = mover
        self._clock = clock
        self._asked = ""
        """The token of the lease whose holder was asked to stop."""
        self._told = -_TELL_SECONDS
        """The time of the last warning."""
        self._sighting: Sighting | None = None
        self._handed = ""
        """The id of the record with which the old job has handed over; empty: it has not yet."""
        self._begins_again = False
        self.is_over = False
        """True once the new job is in charge."""

    @property
    def new(self) -> FoundJob:
        """The job that takes over. Its log is opened anew: one that has claimed the job may not do so again, because
        the run of the job has claimed it since."""
        return FoundJob(self.held, self.paths, self.old.objects, self._app)

    def start(self) -> Job:
        """Start the new job on Spark, in this process. Call `step` often from then on, until the job has ended.

        Raises:
            PenstockError: as `begin`, and as `Application.run`.
        """
        on_spark: Callable[..., Job] = load(HOSTS["spark"])
        return on_spark(self._app, self.begin(), config_of_next=self.begin)

    def begin(self) -> JobConfig:
        """Do what comes before the next start of the new job. The configuration of that start.

        Raises:
            NotFoundError: the old job has no checkpoint, or not the one that is named.
            IncompatibleError: the new job cannot take over.
            PenstockError: the store failed; call again.
        """
        step = self._decide()
        if step == "fork":
            self._fork()
            step = "follow"
        if step == "follow":
            self._prepare()
            self._begins_again = False
            return self.held
        if step == "take over":
            record = take_over(self.old, self.new)
            logger.info("job %s has taken over from %s: checkpoint %s", self.paths.root, self.old.paths.root, record.id)
        if step == "take back":
            held = self.old.config.put(JobSettings.shadow_enabled, True)
            loud = replace(self.new, config=self.config)
            record = take_back(replace(self.old, config=held), loud)
            logger.info("job %s is in charge again: checkpoint %s", self.paths.root, record.id)
        self.is_over = True
        shutil.rmtree(self.held.job.shadow_folder, ignore_errors=True)  # nobody needs what was held back
        return self.config if step == "run" else self.config.without_resets()

    def _fork(self) -> None:
        """Make the fork. The old job runs, so the checkpoint may not be retained any more before it is pinned: then
        what has begun makes room for a fork of another one."""
        for left in reversed(range(_FORK_TRIES)):
            try:
                fork(self.old, self.paths.root, self._from)
            except NotFoundError:
                home = read_home(self.old.objects, self.paths)
                if home is None or home.parent != self.old.paths or not left:
                    raise
                delete_job(self.new)
            else:
                return

    def _decide(self) -> DeployStep:
        old, new = self.old.log.read(), self.new.log.read("report")
        step = decide(old, new, self.old.paths.root, self.paths.root, rollback=self._rollback)
        if step == "follow":
            self._refuse_other_begin(old)
            self._refuse_unknown(old)
        if step == "fork" and old.latest is not None:
            refuse_to_hand_over(self.old.paths.root, old.latest)
            if not old.latest.section(REPLAY).line.epoch:
                raise IncompatibleError(
                    f"checkpoint {old.latest.id} of job `{self.old.paths.root}` is of an older Penstock, and does not "
                    "say which batches it follows from: run that job with this one first"
                )
            self._refuse_unknown(old)
        return step

    def _refuse_unknown(self, old: LogView) -> None:
        """Raise NotFoundError if an operator to reset is not known."""
        if old.latest is None:
            return
        if unknown := sorted(set(self._reset) - (known := resettable(self._app.graph(), old.latest))):
            raise NotFoundError(
                f"checkpoint {old.latest.id} has no operator `{unknown[0]}` that could be reset. It has "
                f"{listed([f'`{each}`' for each in sorted(known)]) or 'none'}"
            )

    def _refuse_other_begin(self, old: LogView) -> None:
        """Raise IncompatibleError if the fork that is there has begun with another checkpoint than the one named."""
        home = read_home(self.old.objects, self.paths)
        if self._from is None or home is None or home.parent != self.old.paths or behind_latest(self._from) is not None:
            return
        named: str | None = self._from
        if named != home.checkpoint:  # which may have left the log
            with suppress(NotFoundError):
                named = str(old.find(self._from).id)
        if named != home.checkpoint:
            raise IncompatibleError(
                f"job `{self.paths.root}` is a fork of checkpoint {home.checkpoint}, and not of `{self._from}`. Name "
                "no checkpoint, give the new job another name, or delete it (`penstock job delete "
                f"{self.paths.root}`)"
            )

    def _prepare(self) -> None:
        """Change the fork before it has run: without operators, and with another number of tasks."""
        new = self.new
        view = new.log.read()
        latest = view.latest
        if latest is None:
            return
        has_begun = not latest.section(SHADOW).unsent or latest.section(DEPLOY).handed_to
        if not has_begun and (left := own_stores(self._reset) & latest.stores.keys()):
            logger.warning(
                "job %s begins without what waits in %s. If its windows are smaller than those of %s, some messages "
                "before the change are in no window that is sent; if they are larger, some are in two. To avoid both, "
                "drain the old job and start the changed application in its place (docs/deploy.md)",
                self.paths.root,
                listed([f"`{each}`" for each in self._reset]),
                self.old.paths.root,
            )
            without_stores(new, view, left)  # behind the warning, which nobody would see if the process died here
        if self._tasks is None or self._tasks == latest.task_count:
            return
        if has_begun:
            raise ConfigError(
                f"job `{self.paths.root}` has begun with {latest.task_count} tasks, and not with {self._tasks}"
            )
        with plan_with(self.config, self._app, self._tasks) as planned:
            repartition(planned, None if self._mover is None else self._mover(self.config))

    def step(self, run: Follower) -> None:
        """Do what is to be done now, while the new job runs. Returns soon. What may pass, such as a store that does not
        answer, is logged from time to time, and the next call tries again.

        Args:
            run: the new job, from `start`.

        Raises:
            IncompatibleError: the old job cannot hand over. Nothing was changed; it is in charge.
            PenstockError: the store failed, and whether the old job has handed over is not known.
        """
        try:
            self._step(run)
        except RetryableError as error:
            self._tell("%s", error)

    def _step(self, run: Follower) -> None:
        following = run.following
        if self.is_over or following is None:
            return
        if self._handed or self._find_handed():
            if following.made == self._handed and not self._begins_again:
                self._begins_again = True
                run.begin_again()
            return
        is_fresh = self._clock() - following.looked <= _FRESH_SECONDS
        if is_fresh and following.is_near and self._has_stopped() and following.caught_up:
            self._hand_over()

    def _hand_over(self) -> None:
        latest, before = self.new.log.read("report").latest, self.old.log.read("report").latest
        line = 0 if latest is None else latest.section(REPLAY).followed.line
        try:
            self._handed = str(hand_over(replace(self.old), self.paths.root, line).id)
        except (LeaseHeldError, FencedError):  # it was started again just now, and is asked again
            self._sighting = None
        except IncompatibleError as error:
            if not isinstance(error, NotYetError) and self.old.log.read("report").latest == before:
                raise
            self._tell("%s", error)
        else:
            logger.info("job %s has handed over: %s makes its last batches", self.old.paths.root, self.paths.root)

    def _refuse_early(self) -> None:
        """Raise IncompatibleError if the old job would stop in vain."""
        old, new = self.old.log.read().latest, self.new.log.read("report").latest
        if old is not None:
            refuse_to_hand_over(self.old.paths.root, old)
        if new is not None:
            refuse_held_changelogs(self.new, new)

    def outcome(self) -> str:
        """Who is in charge, in words, if the new job is not yet. Reads the old job's log."""
        old, new = self.old.paths.root, self.paths.root
        successor = handed_to(self.old.log.read("report"))
        if successor == new:
            return (
                f"job {old} has handed over to {new}, which has not taken over yet: give the same command again. To "
                f"take it back: `penstock deploy {new} APP --rollback`, with the application of {old}"
            )
        if successor:
            return f"job {successor} is in charge in place of {old}"
        if self._asked:
            return (
                f"job {old} was asked to stop, and has not handed over: it is in charge. Start it again, or give the "
                "same command again"
            )
        return f"job {old} is in charge{self._left_behind()}"

    def _left_behind(self) -> str:
        """Advice about the fork that was made for this deployment; empty without one. No other job is to be given up,
        such as one that comes back or has sent output."""
        new, latest = self.paths.root, self.new.log.read("report").latest
        home = read_home(self.old.objects, self.paths)
        if latest is None or self._rollback or home is None or home.parent != self.old.paths:
            return ""
        shadow = latest.section(SHADOW)
        if not (shadow.held or shadow.unsent) or latest.section(DEPLOY).handed_to:
            return ""
        return (
            f". Job {new}, which follows it, stays for the same command, also with a corrected application or with "
            f"`--reset-operator`. To give it up: `penstock job delete {new}`"
        )

    def _find_handed(self) -> bool:
        """True if the old job has handed over before this process came."""
        view = self.old.log.known()
        if handed_to(view) == self.paths.root and view.latest is not None:
            self._handed = str(view.latest.id)
        return bool(self._handed)

    def _tell(self, text: str, *given: object) -> None:
        """Warn, but not often."""
        if (now := self._clock()) >= self._told + _TELL_SECONDS:
            logger.warning(text, *given)
            self._told = now

    def _has_stopped(self) -> bool:
        """True if nobody runs the old job. Who does is asked to stop."""
        objects, key = self.old.objects, self.old.paths.lease
        try:
            data, tag = objects.get_with_tag(key)
        except NotFoundError:
            return True
        state, now = LeaseState.decode(data, key), self._clock()
        if self._sighting is None or self._sighting.tag != tag:
            self._sighting = Sighting(tag, now)
        if judge(self._sighting, state, tag, now, lease_ms=0) is LeaseVerdict.FREE:
            return True
        if self._asked == state.token:
            self._tell("job %s was asked to stop, and still runs", self.old.paths.root)
        else:
            self._refuse_early()
            logger.info("%s has caught up with job %s, which is asked to stop", self.paths.root, self.old.paths.root)
            with audited(self.old, "deploy", {"run": state.holder.run_id, "hands over to": self.paths.root}):
                StopRequests(objects, self.old.paths).ask(state.token, f"{self.paths.root} ({this_process()})")
            self._asked, self._told = state.token, now
        return False
