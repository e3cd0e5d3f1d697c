"""The start of a job: configuration, lease, claim, Spark, containers, run loop; and its orderly end."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.application.application import Application
from penstock.checkpoint.log import CheckpointLog
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.container.shared.store_folders import stores_directory
from penstock.drain.utils import write_drain_notification
from penstock.driver.feed.stop import StopRequest
from penstock.driver.guards.tenure import Tenure
from penstock.driver.loop.assembly import assemble
from penstock.driver.show.metrics_exports import MetricsExports
from penstock.driver.show.progress import ProgressBoard
from penstock.errors import ConfigError, PenstockError
from penstock.host.logs import log_directory
from penstock.job.identity import check_root
from penstock.job.lease import LeaseKeeper
from penstock.job.paths import JobPaths
from penstock.job.shown_failure import LastWords, failure_board
from penstock.job.stop_request import StopRequests, StopRequestWatch
from penstock.objects.open import open_job_root
from penstock.side.plan import with_side_inputs
from penstock.spark.batches.spark_runner import SparkRunner
from penstock.spark.batches.table_build import SparkTableBuilder
from penstock.spark.containers.directory import ContainerDirectory
from penstock.spark.job.handle import Job
from penstock.spark.job.run_view import log_progress
from penstock.spark.job.stop_signals import former_handlers, pass_on, stop_on_signals
from penstock.spark.session.gateway import hear_signals_of_submit, spark_died, stop_context
from penstock.spark.session.session import check_session, create_context, idle_limit, warn_of_clear_text
from penstock.spark.workers.packages import Shipment
from penstock.start.facts import StartRequest
from penstock.start.prepare import PreparedJob, prepare
from penstock.start.streams.job_streams import JobStreams
from penstock.tables.driver.builds import TableBuilds
from penstock.wire.address import ContainerSpec

logger = logging.getLogger(__name__)


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
) -> Job:
    """Implements `Application.run`, which has the documentation."""
    _check_options(until, from_checkpoint, reset_operators)
    if drain and until is not None:
        raise ConfigError("a run that drains at its start reads nothing: leave out either the drain or `until`")
    former = former_handlers()
    settings = load(app, config)
    graph = with_side_inputs(app.graph(), settings)
    streams = JobStreams.open(graph, settings)
    paths = JobPaths(settings.job.name, settings.job.id)
    with ExitStack() as undo:
        undo.callback(streams.close)
        streams.group(streams.input_partitions())
        objects = open_job_root(settings.job)
        undo.callback(objects.close)
        log = CheckpointLog(objects, paths)
        check_root(objects, paths, settings.job.root)
        tenure = Tenure.begin(objects, paths, log, settings.job.lease_ms, named=settings.run_id)
        undo.callback(leave, tenure)
        job = prepare(
            graph,
            settings,
            objects,
            streams,
            log,
            StartRequest(tenure.run_id, from_checkpoint, until == "latest", close, reset_operators),
        )
        words = LastWords(failure_board(objects, paths), tenure.keeper.lease, job.claim.epoch)
        undo.push(words)
        undo.callback(job.admins.close)
        if spark is None:
            # No session: Spark's SQL takes a third of its start, and no batch needs it.
            context = create_context(paths.root, settings.spark, idle_limit(settings.container))
            undo.callback(stop_context, context)
        else:
            context = spark.sparkContext
            check_session(spark, settings.container)
        handle = _start(context, job, log, tenure.keeper, words, undo.pop_all(), drains=drain)
    if former is not None:
        stop_on_signals(handle, handle.ending, former)
        hear_signals_of_submit(pass_on)
    return handle


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


def leave(tenure: Tenure) -> None:
    """Give the lease back. A failure is logged."""
    try:
        tenure.leave()
    except PenstockError as error:
        logger.warning("the lease was not released; it expires by itself: %s", error)


def _start(
    context: SparkContext,
    job: PreparedJob,
    log: CheckpointLog,
    keeper: LeaseKeeper,
    words: LastWords,
    undo: ExitStack,
    *,
    drains: bool,
) -> Job:
    board, stop = ProgressBoard(), StopRequest()
    shipment = Shipment.of(job)
    spec = container_spec(context, job, shipment)
    directory = ContainerDirectory(context, job.config, spec, job.settings.tasks, stop.immediate)
    runner = SparkRunner(context, job, shipment, directory, stop.immediate)
    tables = TableBuilds(job, log, SparkTableBuilder(context, job.config.job.root, job.config.job.root_keys, job.paths))
    loop = assemble(job, log, keeper, directory, runner, board, stop, published=tables)
    if drains:
        loop.drain_at_start()
    tables.needed = loop.needed_versions
    words.epoch = lambda: loop.epoch
    board.processed = directory.processed_messages
    handle = Job(job.paths.root, job.claim.run_id, board, stop, spec.log_directory)
    requests = StopRequests(job.objects, job.paths)
    try:
        exports = MetricsExports(job, job.claim.run_id, board, keeper.lease.may_start_batch)
    except BaseException:
        with undo:
            raise
    handle.prometheus_port = exports.prometheus_port

    def body() -> None:
        with undo, closing(StopRequestWatch(requests, keeper.lease.state.token, stop.ask)):
            undo.callback(exports.close)  # before the lease is left, after the last metrics have come
            try:
                directory.start(runner.cancel)
                loop.run()
            except Exception as error:
                if (died := spark_died(error, board.last_checkpoint)) is not None:
                    raise died from error
                raise
            finally:
                runner.cancel()
                tables.close()
                directory.close(loop.epoch)

    def drain() -> None:
        write_drain_notification(job.objects, job.paths, only_run=job.claim.run_id)
        loop.ask_to_drain()

    handle.start(body, runner.cancel, drain)
    log_progress(handle)
    return handle


def container_spec(context: SparkContext, job: PreparedJob, shipment: Shipment) -> ContainerSpec:
    """The spec of a run's containers. Warns if secrets would cross the network in clear."""
    config, host = job.config, _container_host(context)
    enabled = config.container.tls_enabled
    tls = host is None if enabled is None else enabled
    if host is None:
        warn_of_clear_text(dict(context.getConf().getAll()), tls=tls)
    keeps_stores = config.job.keeps_copies or bool(job.topology.graph.side_stores)
    return ContainerSpec(
        run_id=f"{job.claim.run_id}-{secrets.token_hex(4)}",
        secret=shipment.secret,
        host=host,
        log_directory=str(log_directory(config, job.paths)),
        copies_directory=str(stores_directory(config, job.uid)) if keeps_stores else None,
        tls=tls,
    )


def _container_host(context: SparkContext) -> str | None:
    """The address on which containers listen: loopback if everything is on this machine, else their executor's."""
    master: Any = context.master
    return "127.0.0.1" if str(master).startswith("local") else None
