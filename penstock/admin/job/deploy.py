"""Lets a job take over from another one, exactly at one of its checkpoints.

The new job is a fork that makes the batches of the old one, with its output held back. Once it has caught up, the old
one is asked to stop, and its last checkpoint is followed by a record that hands over. That record is the only decision:
before it, the old job is in charge, and after it, the new one, whichever process dies.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from penstock.admin.checkpoint.change import next_checkpoint
from penstock.admin.job.audit import audited, this_process
from penstock.admin.job.delete import delete_job
from penstock.admin.job.fork import fork
from penstock.admin.jobs import FoundJob
from penstock.admin.outbox import outbox_outputs, read_marks
from penstock.admin.state.repartition import Mover, plan_with, repartition
from penstock.application.application import Application
from penstock.base.plugins import HOSTS, load
from penstock.base.wording import counted, listed
from penstock.checkpoint import edit
from penstock.checkpoint.forks import read_home
from penstock.checkpoint.labels import behind_latest
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.streams import CHANGELOG_STREAM, STREAMS, StreamsSection
from penstock.checkpoint.task_versions import only_in_changelogs
from penstock.config.model import JobConfig
from penstock.config.settings import JobSettings
from penstock.deploy.wing import DEPLOY, DeploySection, handed_to
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.graph.stores import own_stores
from penstock.job.commands import StopRequests
from penstock.job.identity import known_uid
from penstock.job.lease import LeaseHeldError, LeaseState, LeaseVerdict, Sighting, judge
from penstock.job.paths import JobPaths
from penstock.outbox.wing import OUTBOX, OutboxSection, owed_of, own_debt, publisher_name
from penstock.replay.wing import REPLAY, FollowProgress, Line, ReplaySection, of_other
from penstock.shadow.wing import SHADOW, ShadowSection
from penstock.start.plan import resettable

if TYPE_CHECKING:
    from penstock.driver.job import Job

logger = logging.getLogger(__name__)

DeployStep: TypeAlias = Literal["fork", "follow", "take over", "run"]
"""What comes next: make the fork; make the batches of the old job; become loud; or just run."""


_FORK_TRIES = 5


class Follower(Protocol):
    """The run of the new job in this process."""

    @property
    def following(self) -> FollowProgress | None:
        """The progress on the way of the old job."""

    def begin_again(self) -> None:
        """End the run with a commit, and start again with the configuration of `Deployment.begin`."""


def decide(old: LogView, new: LogView, old_job: str, new_job: str, *, rollback: bool = False) -> DeployStep:
    """What comes next on the way to the charge of the new job. Pure.

    Args:
        old: the log of the job that is to hand over.
        new: the log of the one that is to take over.
        old_job: the name and id of the one.
        new_job: those of the other one.
        rollback: the new one may be a job that has handed over to the old one.

    Raises:
        NotFoundError: the old job has no checkpoint.
        IncompatibleError: the new job cannot take over.
    """
    last, begun = old.latest, new.latest
    if last is None:
        raise NotFoundError(f"job `{old_job}` has no checkpoint yet: there is nothing to take over. Start it first")
    successor = last.section(DEPLOY).handed_to
    if successor not in ("", new_job):
        raise IncompatibleError(
            f"job `{old_job}` has handed over to job `{successor}`, which is in charge: deploy from that one"
        )
    if begun is None:
        if successor or rollback:
            raise NotFoundError(f"job `{new_job}` has no checkpoint, so it cannot come back")
        return "fork"
    shadow, deploy = begun.section(SHADOW), begun.section(DEPLOY)
    if successor:
        if not shadow.held and (deploy.took_over == old_job or not shadow.unsent):
            return "run"
        is_made = begun.section(REPLAY).followed.made == str(last.id)
        return "take over" if is_made and shadow.held else "follow"
    if deploy.handed_to == old_job and not rollback:
        raise IncompatibleError(
            f"job `{new_job}` has handed over to job `{old_job}` before. To bring it back, with the state that it had "
            f"then: `penstock deploy {old_job} APP --rollback`"
        )
    if deploy.handed_to == old_job or begun.section(REPLAY).followed.job == old_job or shadow.unsent:
        return "follow"
    raise IncompatibleError(
        f"there is a job `{new_job}` already, which has not begun as a fork of job `{old_job}`. Give the new job "
        f"another name, or delete that one (`penstock job delete {new_job}`)"
    )


@dataclass(frozen=True, slots=True)
class HandOver:
    """A job has handed over to another one: with `checkpoint`, its last one, which follows from `after`."""

    job: str
    to: str
    after: str
    checkpoint: str


class Deployment:
    """A job that takes over from another one.

    The process that runs the new job has it: it calls `start`, and then `step` often, while the job runs. A process
    that dies leaves one of the two jobs in charge; another deployment goes on from there, and once the new job is in
    charge, it is a start like any other.

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
        if new.job.shadow_enabled or new.job.replay_follows is not None:
            raise ConfigError(f"a deployment decides by itself when the output of `{self.paths.root}` is held back")
        self.config = new if tasks is None else new.put(JobSettings.intermediate_stream_partitions, tasks)
        self.held = self.config.put(JobSettings.shadow_enabled, True)
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
        if step == "take over":
            record = take_over(self.old, self.new)
            logger.info("job %s has taken over from %s: checkpoint %s", self.paths.root, self.old.paths.root, record.id)
            step = "run"
        self._begins_again = False
        self.is_over = step == "run"
        if self.is_over:  # nobody needs what was held back
            shutil.rmtree(self.held.job.shadow_folder, ignore_errors=True)
        return self.config if self.is_over else self.held

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
        if step == "fork" and old.latest is not None:
            _refuse(self.old, old.latest)
            if unknown := sorted(set(self._reset) - (known := resettable(self._app.graph(), old.latest))):
                raise NotFoundError(
                    f"checkpoint {old.latest.id} has no operator `{unknown[0]}` that could be reset. It has "
                    f"{listed([f'`{each}`' for each in sorted(known)]) or 'none'}"
                )
        return step

    def _refuse_other_begin(self, old: LogView) -> None:
        """Raise IncompatibleError if the fork that is there has begun with another checkpoint than the one named."""
        home = read_home(self.old.objects, self.paths)
        if self._from is None or home is None or home.parent != self.old.paths or behind_latest(self._from) is not None:
            return
        with suppress(NotFoundError):  # the fork is there, and needs the name no more
            if str(old.find(self._from).id) != home.checkpoint:
                raise IncompatibleError(
                    f"job `{self.paths.root}` is a fork of checkpoint {home.checkpoint}, and not of `{self._from}`. "
                    "Name no checkpoint, give the new job another name, or delete it (`penstock job delete "
                    f"{self.paths.root}`)"
                )

    def _prepare(self) -> None:
        """Change the fork before it has run: without operators, and with another number of tasks."""
        new = self.new
        latest = new.log.read().latest
        if latest is None or not latest.section(SHADOW).unsent or latest.section(DEPLOY).handed_to:
            return
        if left := own_stores(self._reset) & latest.stores.keys():
            latest = _without(new, latest, left)
        if self._tasks not in (None, latest.task_count):
            with plan_with(self.config, self._app, self._tasks) as planned:
                repartition(planned, None if self._mover is None else self._mover(self.config))

    def step(self, run: Follower) -> None:
        """Do what is to be done now, while the new job runs. Returns soon.

        Args:
            run: the new job, from `start`.

        Raises:
            IncompatibleError: the old job cannot hand over. Nothing was changed; it is in charge.
            PenstockError: the store failed.
        """
        following = run.following
        if self.is_over or following is None:
            return
        if self._handed or self._find_handed():
            if following.made == self._handed and not self._begins_again:
                self._begins_again = True
                run.begin_again()
            return
        if following.caught_up and self._has_stopped():
            try:
                self._handed = hand_over(replace(self.old), self.paths.root).checkpoint
            except LeaseHeldError:  # it was started again just now, and is asked again
                self._sighting = None
            else:
                logger.info("job %s has handed over: %s makes its last batches", self.old.paths.root, self.paths.root)

    def outcome(self) -> str:
        """Who is in charge, in words, if the new job is not yet."""
        old, new = self.old.paths.root, self.paths.root
        if self._handed:
            return f"job {old} has handed over to {new}, which has not taken over yet: give the same command again"
        if self._asked:
            return (
                f"job {old} was asked to stop, and has not handed over: it is in charge. Start it again, or give the "
                "same command again"
            )
        return f"job {old} is in charge, and was not disturbed"

    def _find_handed(self) -> bool:
        """True if the old job has handed over before this process came."""
        view = self.old.log.known()
        if handed_to(view) == self.paths.root and view.latest is not None:
            self._handed = str(view.latest.id)
        return bool(self._handed)

    def _has_stopped(self) -> bool:
        """True if nobody runs the old job. Who does is asked to stop."""
        objects, key = self.old.objects, self.old.paths.lease
        try:
            data, tag = objects.get_with_tag(key)
        except NotFoundError:
            return True
        state = LeaseState.decode(data, key)
        now = self._clock()
        if self._sighting is None or self._sighting.tag != tag:
            self._sighting = Sighting(tag, now)
        if judge(self._sighting, state, tag, now, lease_ms=0) is LeaseVerdict.FREE:
            return True
        if self._asked != state.token:
            logger.info("%s has caught up with job %s, which is asked to stop", self.paths.root, self.old.paths.root)
            with audited(self.old, "deploy", {"run": state.holder.run_id, "hands over to": self.paths.root}):
                StopRequests(objects, self.old.paths).ask(state.token, f"{self.paths.root} ({this_process()})")
            self._asked = state.token
        return False


def hand_over(job: FoundJob, to: str) -> HandOver:
    """End the charge of a job that does not run: another one takes over just behind its last checkpoint.

    Args:
        job: the job.
        to: the name and id of the other one.

    Raises:
        LeaseHeldError: the job runs.
        NotFoundError: the job has no checkpoint.
        IncompatibleError: it cannot hand over now, or another process wrote a checkpoint meanwhile.
        PenstockError: the store failed.
    """
    root, view = job.paths.root, job.log.read()
    base = view.latest
    if base is None:
        raise NotFoundError(f"job `{root}` has no checkpoint yet, so there is nothing to hand over")
    if (before := handed_to(view)) == to:
        return HandOver(root, to, str(base.id), str(base.id))
    if before:
        raise IncompatibleError(f"job `{root}` has handed over to job `{before}`")
    _refuse(job, base)
    _refuse_unpublished(job, view)
    late = f"nothing was changed: another process wrote a checkpoint of job `{root}` meanwhile"
    with (
        audited(job, "deploy", {"hands over to": to}) as change,
        next_checkpoint(job, "deploy", view, late) as following,
    ):
        record = following.record(base, _content(job, base))
        # What is held back for its successor from here on is not missing anywhere, if the job comes back.
        sections = record.sections.having(
            {
                DEPLOY: DeploySection(handed_to=to),
                SHADOW: ShadowSection(unsent=True),
                OUTBOX: OutboxSection(),
                REPLAY: ReplaySection(line=base.section(REPLAY).line),  # nothing has changed
            }
        )
        record = replace(record, ended="stopped", sections=sections)
        following.append(record)
        change.changes |= {"checkpoint": f"{base.id} -> {record.id}"}
    return HandOver(root, to, str(base.id), str(record.id))


def take_over(old: FoundJob, new: FoundJob) -> CheckpointRecord:
    """Put a job in charge that has made all batches of one that has handed over to it. It does not run.

    Args:
        old: the job that has handed over.
        new: the other one, with its output held back.

    Raises:
        LeaseHeldError: the new job runs.
        IncompatibleError: the old one has not handed over to it, or not all batches are made.
        PenstockError: the store failed.
    """
    last, view = old.log.read(), new.log.read()
    if decide(last, view, old.paths.root, new.paths.root) != "take over" or last.latest is None or view.latest is None:
        raise IncompatibleError(f"job `{new.paths.root}` cannot take over from job `{old.paths.root}` yet")
    base, handed = view.latest, last.latest
    if held := only_in_changelogs(base, lambda task: new.config.changelog_partitions(base.stores, task)):
        raise IncompatibleError(_only_held(new.paths.root, held))
    late = f"nothing was changed: another process wrote a checkpoint of job `{new.paths.root}` meanwhile"
    with (
        audited(new, "deploy", {"takes over from": old.paths.root}) as change,
        next_checkpoint(new, "deploy", view, late) as following,
    ):
        content = _content(new, base)
        # Streams that were held back are not those that the job writes from now on.
        real = {
            task: {backend: own for backend, own in markers.items() if backend != CHANGELOG_STREAM}
            for task, markers in content.markers.items()
        }
        inputs = {stream: identity for stream, identity in content.identities.items() if stream in base.streams}
        record = following.record(base, replace(content, markers=real, identities=inputs))
        sections = record.sections.having(
            {
                DEPLOY: DeploySection(took_over=old.paths.root),
                SHADOW: ShadowSection(unsent=True),
                OUTBOX: OutboxSection(),
                STREAMS: StreamsSection(),
                REPLAY: ReplaySection(line=Line(following.claim.epoch, of_other(old.paths.root, str(handed.id)))),
            }
        )
        record = replace(record, sections=sections)
        following.append(record)
        change.changes |= {"checkpoint": f"{base.id} -> {record.id}"}
    return record


def _without(job: FoundJob, base: CheckpointRecord, stores: Set[str]) -> CheckpointRecord:
    """Append a record without some stores."""
    late = f"nothing was changed: another process wrote a checkpoint of job `{job.paths.root}` meanwhile"
    with next_checkpoint(job, "deploy", job.log.known(), late) as following:
        content = _content(job, base)
        kept = {
            task: {
                backend: {store: marker for store, marker in own.items() if store not in stores}
                for backend, own in markers.items()
            }
            for task, markers in content.markers.items()
        }
        record = following.record(base, replace(content, markers=kept))
        record = replace(record, stores={name: each for name, each in base.stores.items() if name not in stores})
        following.append(record)
    return record


def _content(job: FoundJob, base: CheckpointRecord) -> edit.CheckpointContent:
    return edit.content_of(base, lambda task: job.config.changelog_partitions(base.stores, task))


def _refuse(job: FoundJob, base: CheckpointRecord) -> None:
    """Raise IncompatibleError if the job, whose last checkpoint this is, could not hand over."""
    root = job.paths.root
    if base.section(SHADOW).held:
        raise IncompatibleError(f"job `{root}` is a shadow, whose output was held back: nobody can take over from it")
    if base.closing is not None or base.drained_operators:
        raise IncompatibleError(
            f"job `{root}` has {'drained' if base.closing != 'end-of-stream' else 'come to the end of its inputs'}: "
            "nothing waits in it any more, and the next start may be of a changed program. Start that one in its place"
        )
    if base.quiet_until:
        raise IncompatibleError(
            f"job `{root}` sends no output yet, because it reads again what it has sent before: wait until it does"
        )
    if unread := [f"`{stream}`" for stream, own in base.section(STREAMS).streams.items() if own.left()]:
        raise IncompatibleError(f"the durable stream {listed(unread)} has messages that job `{root}` has not read")
    if held := only_in_changelogs(base, lambda task: job.config.changelog_partitions(base.stores, task)):
        raise IncompatibleError(_only_held(root, held))


def _only_held(root: str, held: Iterable[str]) -> str:
    return (
        f"job `{root}` has store {listed([f'`{store}`' for store in held])} in its changelog alone, and a changelog "
        "that is held back cannot be taken over: add another backend to `stores.backup.factories`, and run the job once"
    )


def _refuse_unpublished(job: FoundJob, view: LogView) -> None:
    """Raise IncompatibleError if readers do not see all exactly-once output of the last checkpoint: the job alone can
    publish it."""
    uid = known_uid(job.objects, job.paths)
    owed = own_debt(owed_of(view), uid or "", job.paths)
    marks = read_marks(owed.unpublished, publisher_name(owed, uid or "", job.paths), job.config)
    for output in outbox_outputs(owed.unpublished, marks):
        if output.published != output.messages:
            left = output.messages - (output.published or 0)
            raise IncompatibleError(
                f"job `{job.paths.root}` has not published {counted(left, 'message')} of its last checkpoint to "
                f"`{output.output}`, or it is not known: start it once, and it publishes them"
            )
