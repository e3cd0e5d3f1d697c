"""The start of a job: configuration, lease, claim, Spark, containers, run loop; and its orderly end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.application.application import Application
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.container.shared.store_folders import stores_directory
from penstock.drain.utils import write_drain_notification
from penstock.driver.feed.feed import Feed
from penstock.driver.feed.stop import StopRequest
from penstock.driver.loop.run import Run
from penstock.driver.loop.run_loop import RunLoop
from penstock.errors import ConfigError
from penstock.host.logs import log_directory
from penstock.side.plan import with_side_inputs
from penstock.spark.batches.table_build import SparkTableBuilder
from penstock.spark.batches.two_ways import runner_for
from penstock.spark.containers.directory import ContainerDirectory
from penstock.spark.job.handle import Job
from penstock.spark.job.run_view import log_progress
from penstock.spark.job.stop_signals import former_handlers, pass_on, stop_on_signals
from penstock.spark.session.gateway import hear_signals_of_submit, quiet_py4j, spark_died, stop_context
from penstock.spark.session.session import check_session, create_context, idle_limit, warn_of_clear_text
from penstock.spark.workers.packages import Shipment
from penstock.start.facts import StartRequest
from penstock.start.prepare import PreparedJob
from penstock.start.streams.job_streams import JobStreams
from penstock.start.streams.owed import Debts
from penstock.wire.address import ContainerSpec
from penstock.wire.ports import BatchRunner

R = TypeVar("R", bound=BatchRunner)


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
    with ExitStack() as undo:
        streams = JobStreams.open(graph, settings)
        undo.callback(streams.close)
        streams.group(streams.input_partitions())
        run = Run(settings, StopRequest(), undo)
        request = StartRequest(run.run_id, from_checkpoint, until == "latest", close, reset_operators)
        job = run.prepare(graph, streams, request)
        quiet_py4j()
        if spark is None:
            # No session: Spark's SQL takes a third of its start, and no batch needs it.
            context = create_context(job.paths.root, settings.spark, idle_limit(settings.container))
            undo.callback(stop_context, context)
        else:
            context = spark.sparkContext
            check_session(spark, settings.container)
        loop, runner = open_on_spark(run, context, runner_for)
        if drain:
            loop.parts.drain.ask_at_start()
        run.obey(run.stop.ask)
        handle = Job(job.paths.root, run.run_id, run.board, run.stop, str(log_directory(settings, job.paths)))
        handle.prometheus_port = run.prometheus_port
        handle.start(partial(_body, run, loop, undo.pop_all()), runner.cancel, partial(_drain, run, loop))
    log_progress(handle)
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


def open_on_spark(
    run: Run,
    context: SparkContext,
    runner_of: Callable[..., R],
    feed: Feed | None = None,
    debts: Debts | None = None,
) -> tuple[RunLoop, R]:
    """Open a prepared run whose containers are on executors and whose batches are Spark jobs. `runner_of` gets the
    arguments of `SparkRunner`."""
    job, stop = run.job, run.stop.immediate
    shipment = Shipment.of(job)
    spec = container_spec(context, job, shipment)
    directory = ContainerDirectory(context, job.config, spec, job.settings.tasks, stop)
    runner = runner_of(context, job, shipment, directory, stop)
    builder = SparkTableBuilder(context, job.config.job.root, job.config.job.root_keys, job.paths)
    loop = run.open(directory, runner, builder, feed, debts)
    directory.start(runner.cancel)
    return loop, runner


def _body(run: Run, loop: RunLoop, undo: ExitStack) -> None:
    with undo:
        try:
            loop.run()
        except Exception as error:
            if (died := spark_died(error, run.board.last_checkpoint)) is not None:
                raise died from error
            raise


def _drain(run: Run, loop: RunLoop) -> None:
    write_drain_notification(run.objects, run.job.paths, only_run=run.run_id)
    loop.ask_to_drain()


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
