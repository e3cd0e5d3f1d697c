"""The start of a job: configuration, lease, claim, Spark, containers, run loop; and its orderly end."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.application.application import Application
from penstock.base import plugins
from penstock.base.retry import Retry, retry
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.container.shared import stores_directory
from penstock.driver.feed.feed import Feed
from penstock.driver.job import Job, JobPage
from penstock.driver.part import StopRequest
from penstock.driver.program import former_handlers, log_progress, pass_on, stop_on_signals
from penstock.driver.run import Run, show_refusal
from penstock.driver.run_loop import RunLoop
from penstock.errors import ConfigError, NotFoundError, PenstockError, RetryableError
from penstock.host.logs import log_directory
from penstock.job.commands import StopRequests
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.spark.containers.directory import ContainerDirectory
from penstock.spark.runner import runner_for
from penstock.spark.session import session
from penstock.spark.session.gateway import hear_signals_of_submit, quiet_py4j, spark_died, stop_context
from penstock.spark.versions import needs_classic
from penstock.spark.workers.packages import Shipment
from penstock.start.check import check_start
from penstock.start.inputs import with_matches
from penstock.start.job import JobPlan
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.start.plan import StartRequest
from penstock.wing import wings
from penstock.wire.containers import ContainerSpec
from penstock.wire.ports import BatchRunner

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=BatchRunner)
_AGAIN = Retry(pause_s=1.0)


def run_application(
    app: Application,
    config: JobConfig | Mapping[str, object] | str | Path | None = None,
    *,
    spark: SparkSession | None = None,
    until: Literal["latest"] | None = None,
    close: bool = True,
    drain: bool = False,
    from_checkpoint: str | None = None,
    reset_operators: Sequence[str] = (),
    config_of_next: Callable[[], JobConfig] | None = None,
) -> Job:
    """Implements `Application.run`, which has the documentation.

    Args:
        config_of_next: returns the configuration of each further start of the job in this process; by default it is
            that of the first one. Raises PenstockError.
    """
    _check_options(until, from_checkpoint, reset_operators)
    if drain and until is not None:
        raise ConfigError("a run that drains at its start reads nothing: leave out either the drain or `until`")
    needs_classic(spark, "app.run(..., spark=...)")
    former = former_handlers()
    settings = load(app, config)
    request = StartRequest("", from_checkpoint, until == "latest", close, reset_operators)
    with ExitStack() as undo:
        handle: Job | None = None
        served: JobPage | None = None
        if settings.job.dashboard_port is not None:
            serve: Callable[..., JobPage] = plugins.load(plugins.DISPLAYS["dashboard"])  # loaded only if it is shown
            paths = JobPaths(settings.job.name, settings.job.id)
            served = serve(settings, paths, lambda: None if handle is None else handle.live_metrics())
            undo.callback(served.close)
        job = _SparkJob(app, settings, undo.enter_context(_Spark(spark, settings)), StopRequest(), config_of_next)
        first = job.start(request)
        undo.push(first.undo)
        if drain:
            first.loop.ask_to_drain(at_start=True)
        root, run = first.run.job.paths.root, first.run
        logs = str(log_directory(settings, run.paths, run.job.uid))
        handle = Job(root, run.run_id, run.board, job.stop, logs, served)
        handle.follow(run.run_id, run.board, first.runner.cancel, run.prometheus_port)
        undo.pop_all()
        handle.start(partial(job.run, handle), job.ask_to_drain)
    log_progress(handle)
    if former is not None:
        stop_on_signals(handle, handle.ending, former)
        hear_signals_of_submit(pass_on)
    return handle


class _Spark:
    """The Spark context of a job's runs: a given one, or one that is made when the first run needs it, and stopped at
    the end."""

    def __init__(self, given: SparkSession | None, settings: JobConfig) -> None:
        self._given = given
        self._settings = settings
        self._found: SparkContext | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._found is not None and self._given is None:
            stop_context(self._found)

    def context(self, name: str) -> SparkContext:
        if self._found is None and self._given is not None:
            session.check_session(self._given, self._settings.container)
            self._found = self._given.sparkContext
        elif self._found is None:
            # No session: Spark's SQL takes a third of its start, and no batch needs it.
            self._found = session.create_context(
                name, self._settings.spark, session.idle_limit(self._settings.container)
            )
        return self._found


@dataclass(frozen=True, slots=True)
class _StartedRun:
    """A run that holds the job, until `undo` gives everything back."""

    run: Run
    loop: RunLoop
    runner: BatchRunner
    undo: ExitStack


class _SparkJob:
    """Starts a job's run, and starts it again whenever its inputs have become others."""

    def __init__(
        self,
        app: Application,
        settings: JobConfig,
        spark: _Spark,
        stop: StopRequest,
        config_of_next: Callable[[], JobConfig] | None = None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._config_of_next = config_of_next
        self._spark = spark
        self.stop = stop
        self._current: _StartedRun | None = None
        self._changing = threading.Lock()
        """Held while one takes the place of another."""

    def ask_to_drain(self) -> None:
        """Ask the run to drain, once it is there."""
        with self._changing:
            if self._current is None:
                raise NotFoundError("the job has ended: there is nothing to drain")
            self._current.loop.ask_to_drain()

    def _start_next(self) -> _StartedRun:
        return self.start(StartRequest(""), again=True)

    def start(self, request: StartRequest, *, again: bool = False) -> _StartedRun:
        """Take the lease, decide where the run begins, and open its containers. Only the first time resets inputs."""
        if again:
            given = self._config_of_next
            self._settings = (self._settings if given is None else given()).without_resets()
        settings = self._settings
        with ExitStack() as undo:
            # Before the lease: a job whose first start names a missing stream leaves nothing behind.
            try:
                graph = with_matches(complete(self._app.graph(), settings), settings)
                streams = JobStreams.open(graph, settings)
                undo.callback(streams.close)
                streams.group(streams.input_partitions())
            except PenstockError as error:
                show_refusal(settings, error)
                raise
            run = Run(settings, self.stop, undo)
            job = run.prepare(graph, streams, replace(request, run_id=run.run_id))
            quiet_py4j()
            check_next = partial(check_start, self._app.graph(), settings.without_resets(), run.objects)
            context = self._spark.context(job.paths.root)
            loop, runner = open_on_spark(run, context, runner_for, check_next=check_next)
            run.obey(self.stop.ask)
            self._current = started = _StartedRun(run, loop, runner, undo.pop_all())
        return started

    def run(self, handle: Job) -> None:
        """Run to the job's end. Raises the error that ended it."""
        with self._spark:
            while (current := self._current) is not None:
                handle.follow(current.run.run_id, current.run.board, current.runner.cancel, current.run.prometheus_port)
                self._run_once(current)

    def _run_once(self, current: _StartedRun) -> None:
        """Run to the end, or to the start that takes its place."""
        with ExitStack() as changing:
            with current.undo:
                _run(current)
                changing.enter_context(self._changing)
            self._current = None
            if self.stop.goes_on:
                self._look_for_late_stop(current.run)
            if self.stop.begins_again():
                self._start_again()

    def _look_for_late_stop(self, run: Run) -> None:
        """A request to stop may have come after the run's last look, and before it gave the lease back."""
        try:
            with closing(open_job_root(self._settings.job)) as objects:
                requests = StopRequests(objects, run.paths)
                if requests.asked_by(run.token) is not None:
                    self.stop.ask()
                    requests.clear()
        except RetryableError as error:
            logger.warning("it is not known whether somebody asked the job to stop: %s", error)

    def _start_again(self) -> None:
        stop, why = self.stop.graceful, "the job does not begin again yet: %s"
        try:
            retry(self._start_next, _AGAIN, interrupt=stop, on_failure=partial(logger.warning, why))
        except RetryableError as error:
            if not stop.is_set():
                raise
            logger.warning("the job ends without beginning again: %s", error)


def _run(started: _StartedRun) -> None:
    try:
        started.loop.run()
    except Exception as error:
        if (died := spark_died(error, started.run.board.last_checkpoint)) is not None:
            raise died from error
        raise


def _check_options(until: object, from_checkpoint: object, reset_operators: object) -> None:
    if until not in (None, "latest"):
        raise ConfigError(
            f'until={until!r}: "latest" ends the job once it has read what the inputs hold now, None runs it until it '
            "is stopped"
        )
    if not isinstance(from_checkpoint, str | None):
        raise ConfigError(
            f"from_checkpoint={from_checkpoint!r}: expected the id of a checkpoint as a string; `penstock checkpoint "
            "list` lists them"
        )
    if isinstance(reset_operators, str) or not isinstance(reset_operators, Sequence):
        raise ConfigError(f"reset_operators={reset_operators!r}: expected a list of operator ids")


def load(app: Application, config: JobConfig | Mapping[str, object] | str | Path | None) -> JobConfig:
    """The configuration, with the application's name as the default of `job.name`."""
    if isinstance(config, JobConfig):
        return config
    stores = [store.name for store in app.graph().stores]
    if isinstance(config, str | Path):
        return load_config(config, default_job_name=app.name, stores=stores)
    if config is None or isinstance(config, Mapping):
        return load_config(overrides=config, default_job_name=app.name, stores=stores)
    raise ConfigError(f"a configuration is a dict, a path or a JobConfig, not {type(config).__name__}")


def open_on_spark(
    run: Run,
    context: SparkContext,
    runner_of: Callable[..., R],
    feed: Feed | None = None,
    check_next: Callable[[], object] | None = None,
) -> tuple[RunLoop, R]:
    """Open a prepared run whose containers are on executors and whose batches are Spark jobs. `runner_of` gets the
    arguments of `SparkRunner`."""
    job, stop = run.job, run.stop.immediate
    shipment = Shipment.of(job)
    spec = container_spec(context, job.plan, shipment)
    directory = ContainerDirectory(context, job.config, spec, job.settings.tasks, stop)
    runner = runner_of(context, job.plan, shipment, directory, stop)
    tools = {w.name: partial(w.load(w.on_host["spark"]), context) for w in wings() if "spark" in w.on_host}
    loop = run.open(directory, runner, tools, feed, check_next)
    directory.start(runner.cancel)
    return loop, runner


def container_spec(context: SparkContext, job: JobPlan, shipment: Shipment) -> ContainerSpec:
    """The spec of a run's containers. Warns if secrets would cross the network in clear, or
    YARN would not count the containers' memory."""
    config, host = job.config, _container_host(context)
    enabled = config.container.tls_enabled
    tls = host is None if enabled is None else enabled
    if host is None:
        conf = dict(context.getConf().getAll())
        session.warn_of_clear_text(conf, tls=tls)
        session.warn_of_unseen_memory(conf)
    keeps_stores = config.job.keeps_copies or bool(job.topology.graph.side_stores)
    return ContainerSpec(
        run_id=f"{job.claim.run_id}-{secrets.token_hex(4)}",
        secret=shipment.secret,
        host=host,
        log_directory=str(log_directory(config, job.paths, job.uid)),
        copies_directory=str(stores_directory(config, job.uid)) if keeps_stores else None,
        job=job.paths.root,
        log_format=config.job.log_format,
        tls=tls,
    )


def _container_host(context: SparkContext) -> str | None:
    """The address on which containers listen: loopback if everything is on this machine, else their executor's."""
    master: Any = context.master
    return "127.0.0.1" if str(master).startswith("local") else None
