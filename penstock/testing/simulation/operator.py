"""Somebody who types commands while a job lives, and while it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.admin.checkpoint.change import plan_offsets, write_checkpoint
from penstock.admin.job.drain import drain
from penstock.admin.job.running import stop
from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.set import set_startpoint
from penstock.admin.startpoint.waiting import delete_startpoints
from penstock.admin.state.held import collect_garbage
from penstock.admin.state.repartition import planned_for, repartition
from penstock.api.requests import StartpointOldest, StartpointSpecific
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config.model import JobConfig
from penstock.errors import CorruptError, PenstockError
from penstock.graph.specs import ApplicationGraph
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.start.inputs import with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.start.startpoints.request import WithState
from penstock.testing.simulation.scheduler import Process, Scheduler


class Operator:
    """Types commands of `penstock.admin`. Refusals are part of the story; damage is not."""

    def __init__(self, scheduler: Scheduler, errors: list[BaseException]) -> None:
        self._scheduler = scheduler
        self._errors = errors

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

    def take_back(self, config: JobConfig) -> tuple[str, ...]:
        """`startpoint delete`, as a start says that is refused because of one that leads it back to a checkpoint.
        Returns the uuids of what is deleted."""
        deleted: list[str] = []

        def work() -> object:
            found = self._found(config)
            waiting = found.startpoints.waiting().live
            streams = {each.key.ssp.system_stream for each in waiting if each.with_state == "nearest"}
            for stream in sorted(streams, key=str):
                deleted.extend(each.uuid for each in waiting if each.key.ssp.system_stream == stream)
                delete_startpoints(found, str(stream))
            return len(deleted)

        self._type("startpoint delete", work)
        return tuple(deleted)

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
