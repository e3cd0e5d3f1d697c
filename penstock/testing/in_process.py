"""A whole job in one process: driver, containers and batches. Everything but Spark and the network is real.

The run loop, epochs, commits, the checkpoint log, containers, state backends and systems are those of a cluster. Only
the two ports have other implementations: calls go straight to the `Container` objects, and a batch runs in the caller's
thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.checkpoint.log import CheckpointLog
from penstock.config.model import JobConfig
from penstock.driver.feed.feed import Feed
from penstock.driver.part import RunContext, StopRequest
from penstock.driver.run_loop import RunLoop, RunParts
from penstock.driver.show.progress import ProgressBoard
from penstock.driver.watches import run_of_start
from penstock.graph.specs import ApplicationGraph
from penstock.job.lease import Lease, LeaseHolder, LeaseKeeper, LeaseState
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.runtime.stage.attempt import new_token
from penstock.start.check import check_start
from penstock.start.inputs import with_matches
from penstock.start.job import ClaimedJob
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.start.plan import StartRequest
from penstock.start.prepare import prepare
from penstock.state.stores.task_store import StoreLayer
from penstock.system.base import System
from penstock.testing.in_process_ports import InProcessFleet, InProcessRunner
from penstock.wing import wings


class InProcessDriver:
    """One driver of a job, with separate containers. Drivers that share `objects` and `systems` compete for the job.

    Its lease is never renewed and never lost: the checkpoint log alone decides who owns the job.

    Example:
        >>> from penstock.config import load_config
        >>> from penstock.objects.open import open_job_root
        >>> from penstock.system.memory import MemorySystem
        >>> from penstock.testing.in_process import InProcessDriver
        >>> app = ps.StreamApplication("copy")
        >>> _ = app.input("local.in").send_to(app.output("local.out"))
        >>> systems = {"local": MemorySystem("local")}
        >>> [systems["local"].admin().create_stream(stream, 1) for stream in ("in", "out")]
        [True, True]
        >>> config = load_config(overrides={"job.name": "copy", "job.root": "memory://copy"})
        >>> objects = open_job_root(config.job)
        >>> driver = InProcessDriver(app.graph(), config, objects, systems, until_latest=True)
        >>> driver.loop.run()
        >>> driver.log.read().latest.ended
        'stopped'
        >>> driver.close()
    """

    def __init__(
        self,
        graph: ApplicationGraph,
        config: JobConfig,
        objects: ObjectStore,
        systems: Mapping[str, System],
        *,
        containers: int = 2,
        layers: tuple[type[StoreLayer], ...] = (),
        task_config: Mapping[str, str] | None = None,
        feed: Feed | None = None,
        tools: Mapping[str, Any] | None = None,
        until_latest: bool = False,
        until: Mapping[SystemStreamPartition, int] | None = None,
        close: bool = True,
        from_checkpoint: str | None = None,
        reset_operators: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
        runner: Callable[[ClaimedJob, InProcessFleet], InProcessRunner] | None = None,
        fleet: Callable[[ClaimedJob], InProcessFleet] | None = None,
    ) -> None:
        """Claim the job and decide where it begins. `loop.start()` opens the first epoch.

        Args:
            graph: the application, from `app.graph()`.
            config: the configuration. `job.root` must name the store `objects`, because containers open it themselves.
            objects: the object store of the job root.
            systems: the systems by name.
            containers: how many containers the driver has.
            layers: layers around every store, from the inside to the outside.
            task_config: what tasks find in `context.config`; by default the configuration.
            feed: chooses the batches; by default new messages are read as the configuration says.
            tools: what wings get of their host, by wing (`Wing.on_host`); by default what they have for this process.
            until_latest: end the run once everything that the inputs hold now is read.
            until: end the run once everything before these offsets is read.
            close: True if a run that reaches its end closes the stream, if that matters to the application.
            from_checkpoint: the id of the checkpoint to start from instead of the last one.
            reset_operators: the ids of the operators that begin again, without what waited in them.
            clock: of the driver, for batch times, commits that are due, expiry, and all pauses; and of the containers,
                for what backends do by time. On a cluster each process has its machine's.
            runner: makes the port for batches; an `InProcessRunner`, if None.
            fleet: makes the port for containers, instead of `containers`.
        """
        self.log = CheckpointLog(objects, JobPaths(config.job.name, config.job.id))
        self.board, self.stop = ProgressBoard(), StopRequest()
        run_id = run_of_start(self.log.read("report"), config.run_id) or uuid.uuid4().hex[:12]
        check_next = partial(check_start, graph, config.without_resets(), objects, systems, clock)
        graph = with_matches(complete(graph, config), config, systems)
        streams = JobStreams.open(graph, config, systems)
        job = prepare(
            graph,
            config,
            objects,
            streams,
            self.log,
            StartRequest(run_id, from_checkpoint, until_latest, close, reset_operators),
            clock,
        )
        shown = job.settings.config if task_config is None else task_config
        settings = replace(job.settings, store_layers=layers, config=shown)
        read = {at.ssp: offset for at, offset in job.start.positions.items()}
        end = job.plan.until if until is None else {**read, **until}  # nothing of an input that it does not name
        self.job = replace(job, plan=replace(job.plan, settings=settings, until=end))
        standbys = config.job.standbys
        self.fleet = (
            InProcessFleet(job.settings.tasks, containers, standbys=standbys, clock=clock)
            if fleet is None
            else fleet(self.job)
        )
        self.runner = (runner or InProcessRunner)(self.job, self.fleet)
        keeper = _keeper(objects, self.job.paths, run_id)
        own = {wing.name: wing.load(wing.on_host["process"]) for wing in wings() if "process" in wing.on_host}
        run = RunContext(
            self.job, keeper, self.fleet, self.runner, self.stop, self.board, check_next, {**own, **(tools or {})}
        )
        self.loop = RunLoop(RunParts(run, feed))
        self._is_closed = False

    def close(self) -> None:
        """End at once, as a process that is killed between two calls. Nothing more is committed or written. Later calls
        do nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.loop.close()
        self.fleet.close()
        self.job.admins.close()
        self.job.streams.close()


def _keeper(objects: ObjectStore, paths: JobPaths, run_id: str) -> LeaseKeeper:
    state = LeaseState(LeaseHolder.of_this_process(run_id), 60_000, new_token())
    return LeaseKeeper(Lease(objects, paths.lease, state, "", 0.0, lambda: 0.0))
