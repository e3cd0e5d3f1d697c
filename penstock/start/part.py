"""The part of a wing in the start of a job.

A start completes the application, decides where the run begins, makes its streams, and claims the log. It goes over the
parts of all wings wherever one of them may take part, and knows none of them. They act in the order of `wings()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.job.paths import JobPaths
from penstock.wing import wings

if TYPE_CHECKING:  # commands complete applications without Arrow
    from collections.abc import Callable

    from penstock.checkpoint.log_view import LogView
    from penstock.config.model import JobConfig
    from penstock.errors import ConfigError
    from penstock.graph.specs import ApplicationGraph
    from penstock.graph.topology import Topology
    from penstock.objects.store import ObjectStore
    from penstock.start.job import JobPlan
    from penstock.start.job_streams import JobStreams
    from penstock.start.plan import StartFacts, StartPlan
    from penstock.system.base import SystemAdmin


@dataclass(frozen=True, slots=True)
class DecidedStart:
    """A start that is decided. No stream has been made for it, and the log is not claimed yet."""

    facts: StartFacts
    plan: StartPlan
    topology: Topology
    """The application's, with serdes that go on from what the stores have."""
    uid: str
    streams: JobStreams
    publisher: str
    """The name under which the job writes its outputs, in this run and in every other one."""
    read_log: Callable[[], LogView]
    """Reads the log again: another driver may have appended to it since the facts were read."""

    @property
    def paths(self) -> JobPaths:
        return JobPaths(self.facts.config.job.name, self.facts.config.job.id)

    @property
    def tasks(self) -> int:
        return len(self.facts.inputs.tasks)


class StartPart:
    """The part of a wing in the start of a job. By default it does nothing.

    What it raises refuses the start. A check of a start (`penstock check`) calls all methods before `settle` as well.
    """

    wing: str = ""
    """The name of the wing, which is set once the part is made."""

    def complete(self, graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
        """The application, completed by the configuration. Asks nobody: no system is open yet.

        Raises:
            ConfigError: the configuration contradicts the application.
        """
        return graph

    def connect(self, graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
        """The application, completed by what others say, such as a registry. It is asked at each start, and at each
        check of one. Raises PenstockError."""
        return graph

    def misfits(self, graph: ApplicationGraph, config: JobConfig) -> Iterable[ConfigError]:
        """The reasons why the configuration does not fit the application. Pure."""
        return ()

    def check_streams(self, graph: ApplicationGraph, admins: Mapping[str, SystemAdmin], tasks: int) -> None:
        """Check the streams that the wing reads, before anything is decided. Writes nothing.

        Args:
            graph: the application.
            admins: those of all systems of the job, by name.
            tasks: the number of tasks that the job has now.

        Raises:
            PenstockError: the job cannot begin with them.
        """

    def backed_up(self, graph: ApplicationGraph, config: JobConfig) -> Sequence[str]:
        """Stores that the job does not write, and that the backends of its configuration keep all the same."""
        return ()

    def check(self, facts: StartFacts, plan: StartPlan) -> None:
        """Check what the start was decided to be against what the log says of the job. Pure.

        Raises:
            PenstockError: the job cannot start so.
        """

    def settle(self, start: DecidedStart) -> DecidedStart:
        """Settle what earlier runs have left, before streams are made. The answer may have more streams that the job
        writes, and another publisher. Writes nothing.

        Raises:
            PenstockError: what is left, and the streams as they are now, do not go together.
        """
        return start

    def claimed(self, plan: JobPlan, objects: ObjectStore) -> None:
        """Write to the job's folder what belongs to a run. The log is claimed: an older driver appends nothing any
        more.

        Args:
            plan: of the run.
            objects: the job root.

        Raises:
            RetryableError: the store failed.
        """

    def before_fences(self, plan: JobPlan, streams: JobStreams, view: LogView) -> None:
        """Check, at each beginning of an epoch, what the fencing of outputs could hide.

        Args:
            plan: of the run.
            streams: the streams of the job.
            view: the log, as it is known.

        Raises:
            PenstockError: the outputs must not be fenced.
        """

    def for_containers(self, graph: ApplicationGraph) -> Any:
        """The value that the wing's part in containers needs from the start; None if it needs none. It can be pickled,
        and is made before anything of the application has run. Containers find it in `JobPackage.of_start`."""
        return None


def start_parts() -> tuple[StartPart, ...]:
    """The parts of all wings, in their order."""
    return tuple(wing.part(StartPart, wing.start) for wing in wings() if wing.start)


def connect(graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
    """The application, completed by what others say. Raises PenstockError as `StartPart.connect`."""
    for part in start_parts():
        graph = part.connect(graph, config)
    return graph


def complete(graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
    """The application, completed by the configuration. Raises ConfigError as `StartPart.complete`."""
    for part in start_parts():
        graph = part.complete(graph, config)
    return graph
