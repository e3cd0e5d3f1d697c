"""Somebody who types commands while a job lives, and while it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.admin.checkpoint.change import plan_offsets, write_checkpoint
from penstock.admin.checkpoint.labels import label_checkpoint, unlabel_checkpoint
from penstock.admin.job.delete import delete_job
from penstock.admin.job.drain import drain
from penstock.admin.job.fork import detach, fork
from penstock.admin.job.running import stop
from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.set import set_startpoint
from penstock.admin.startpoint.waiting import delete_startpoints
from penstock.admin.state.held import collect_garbage
from penstock.admin.state.repartition import planned_for, repartition
from penstock.api.requests import StartpointOldest, StartpointSpecific
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.log_view import LogView
from penstock.config.model import JobConfig
from penstock.errors import CorruptError, IncompatibleError, PenstockError
from penstock.graph.specs import ApplicationGraph
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.start.inputs import with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.start.startpoint_request import WithState
from penstock.testing.simulation.checkpoints import CheckpointWatch
from penstock.testing.simulation.scheduler import Process, Scheduler

FORK = "fork"
"""The name of the job's fork, while there is one."""


class Operator:
    """Types commands of `penstock.admin`. Refusals are part of the story; damage is not."""

    def __init__(self, scheduler: Scheduler, errors: list[BaseException]) -> None:
        self._scheduler = scheduler
        self._errors = errors
        self.labels: dict[str, str] = {}
        """Label → its checkpoint, of those that were set, and that nobody has begun to take off."""
        self.forked: str | None = None
        """The checkpoint that the fork begins with, if it is complete and nobody has begun to delete it."""

    def _type(self, name: str, work: Callable[[], object]) -> None:
        """Carry a command out in a process."""
        process = Process("operator")

        def run() -> None:
            self._scheduler.note(f"operator: {name}")
            try:
                self._scheduler.note(f"operator: {name} is done: {str(work())[:100]}")
            except PenstockError as error:
                self._scheduler.note(f"operator: {name}: {type(error).__name__}: {error}")
                if isinstance(error, CorruptError):
                    self._errors.append(error)

        actor = self._scheduler.spawn(process, name, run)
        self._scheduler.join(self._scheduler.me(), actor, 600.0)
        self._scheduler.kill(process, "the command has ended")

    def stop(self, config: JobConfig) -> None:
        self._type("stop", lambda: stop(self._found(config), wait=False))

    def drain(self, config: JobConfig) -> None:
        self._type("drain", lambda: drain(self._found(config), wait=False))

    def collect(self, config: JobConfig) -> None:
        """`state gc`, which is refused while the job runs."""
        self._type("gc", lambda: collect_garbage(self._found(config)))

    def label(self, config: JobConfig) -> None:
        """`checkpoint label` and `checkpoint unlabel`. The job may run."""
        choices = self._scheduler.choices
        name = "abc"[choices.draw(3)]

        def work() -> object:
            found = self._found(config)
            if name in self.labels:
                del self.labels[name]
                return unlabel_checkpoint(found, name).checkpoint
            restorable = found.log.read().restorable
            if not restorable:
                raise PenstockError("the job has no checkpoint")
            chosen = str(restorable[choices.draw(len(restorable))].id)
            self.labels[name] = label_checkpoint(found, chosen, name).checkpoint
            return chosen

        self._type(f"checkpoint label {name}", work)

    def fork(self, config: JobConfig) -> None:
        """`penstock fork`; of a fork that is there, `job detach` or `job delete`. The job may run."""
        choices = self._scheduler.choices

        def work() -> object:
            own = self.fork_of(config)
            if self.forked is not None:
                if choices.draw(3):
                    return detach(own).copied
                self.forked = None
                return delete_job(own).job
            found = self._found(config)
            restorable = found.log.read().restorable
            if not restorable:
                raise PenstockError("the job has no checkpoint")
            chosen = str(restorable[choices.draw(len(restorable))].id)
            try:
                made = fork(found, FORK, chosen)
            except IncompatibleError:
                delete_job(own)  # of another checkpoint, and somebody died on the way
                raise
            self.forked = made.parent_checkpoint
            return chosen

        self._type("fork", work)

    def lost_labels(self, view: LogView) -> list[str]:
        """The labels whose checkpoints cannot be restored any more, in words."""
        restorable = {str(record.id) for record in view.restorable}
        lost = [each for each in self.labels.items() if each[1] not in restorable]
        return [f"checkpoint {checkpoint} has the label `{name}`, and is not retained" for name, checkpoint in lost]

    def broken_fork(self, parent: CheckpointWatch, fork: CheckpointWatch, config: JobConfig) -> list[str]:
        """The difference between the fork and the checkpoint that it begins with, in words."""
        if self.forked is None:
            return []
        broken = [f"the fork: {each}" for each in fork.look(config.of_job(FORK, config.job.id))]
        known = parent.contents(self.forked)
        for found in fork.all_contents():
            different = [at for at, content in found.items() if content != known.get(at, content)]
            broken += [f"the fork has another content of store `{store}` of task {task}" for store, task in different]
        return broken

    def fork_of(self, config: JobConfig) -> FoundJob:
        return self._found(config.of_job(FORK, config.job.id))

    def startpoint(self, inputs: Sequence[SystemStream], config: JobConfig) -> None:
        """`startpoint set`, for a position that was reached before. The job may run."""
        choices = self._scheduler.choices
        stream = inputs[choices.draw(len(inputs))]
        with_state: WithState = ("keep", "clear", "nearest")[choices.draw(3)]

        def work() -> object:
            found = self._found(config)
            if with_state == "clear":
                asked = [set_startpoint(found, str(each), StartpointOldest(), with_state="clear") for each in inputs]
                return asked[-1].changes
            reached = self._reached(found, stream)
            partition = sorted(reached)[choices.draw(len(reached))]
            at = StartpointSpecific(str(choices.draw(reached[partition] + 1)))
            return set_startpoint(found, str(stream), at, partitions=[partition], with_state=with_state).changes

        self._type(f"startpoint set --with-state {with_state}", work)

    def take_back(self, config: JobConfig) -> tuple[str, ...] | None:
        """`startpoint delete`, as a start says that is refused because of one that leads it back to a checkpoint.
        Returns the uuids of what is deleted; None if the command failed, and is to be called again."""
        deleted: list[str] = []
        done: list[bool] = []

        def work() -> object:
            found = self._found(config)
            waiting = found.startpoints.waiting().live
            streams = {each.key.ssp.system_stream for each in waiting if each.with_state == "nearest"}
            for stream in sorted(streams, key=str):
                deleted.extend(each.uuid for each in waiting if each.key.ssp.system_stream == stream)
                delete_startpoints(found, str(stream))
            done.append(True)
            return len(deleted)

        self._type("startpoint delete", work)
        return tuple(deleted) if done or deleted else None

    def move(self, inputs: Sequence[SystemStream], config: JobConfig) -> None:
        """`checkpoint set`, back to positions that were reached before. It is refused while the job runs."""
        choices = self._scheduler.choices
        stream = inputs[choices.draw(len(inputs))]

        def work() -> object:
            found = self._found(config)
            reached = self._reached(found, stream)
            offsets = {
                SystemStreamPartition(stream.system, stream.stream, partition): choices.draw(upcoming + 1)
                for partition, upcoming in sorted(reached.items())
            }
            return write_checkpoint(plan_offsets(found, offsets)).checkpoint

        self._type("checkpoint set", work)

    def _reached(self, found: FoundJob, stream: SystemStream) -> dict[int, int]:
        """The positions that every retained checkpoint has reached: what is before them is in each one's state."""
        reached: dict[int, int] = {}
        for record in found.log.read().restorable:
            for own in record.next_offsets.values():
                for ssp, offset in own.items():
                    if ssp.system_stream == stream:
                        reached[ssp.partition] = min(offset, reached.get(ssp.partition, offset))
        if not reached:
            raise PenstockError("the job has no checkpoint")
        return reached

    def repartition(self, config: JobConfig, graph: ApplicationGraph, tasks: int) -> None:
        """`state repartition`."""

        def work() -> object:
            found = self._found(config)
            own = with_matches(complete(graph, config), config)
            streams = JobStreams.open(own, config)
            try:
                return repartition(planned_for(found, own, streams, tasks, {})).written
            finally:
                streams.close()

        self._type(f"repartition to {tasks}", work)

    def _found(self, config: JobConfig) -> FoundJob:
        return FoundJob(config, JobPaths(config.job.name, config.job.id), open_job_root(config.job))
