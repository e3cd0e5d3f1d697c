"""`penstock run`, the signals that end it, and its view: a progress bar on a terminal, log lines elsewhere, all of it
on standard error. `penstock deploy` is a run that takes over from a running job. And `penstock check` runs nothing.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self

import typer
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from penstock.base.plugins import HOSTS, load
from penstock.base.secrets import without_secrets
from penstock.base.wording import counted
from penstock.cli.shared.application import LoadedApplication, load_application
from penstock.cli.shared.errors import report_failed_message, say, tracebacks_wanted, with_options
from penstock.cli.shared.options import Call, Debug, JobName, JsonCall
from penstock.cli.shared.output import stderr_console
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.config.settings import LogFormat
from penstock.driver.program import PROGRESS_LOGGER, SIGNALS, RunObserver, RunView, StopCount, ViewLog
from penstock.errors import PenstockError, UserCodeError
from penstock.host.log_lines import LineFormatter
from penstock.job.paths import JobPaths

if TYPE_CHECKING:
    from penstock.admin.state.repartition import Mover
    from penstock.driver.job import Job


class RunDisplay(Protocol):
    """Shows a run, and what Penstock logs meanwhile."""

    def show(self, view: RunView) -> None:
        """Called several times a second."""

    def say(self, text: str) -> None:
        """One sentence that must not be missed."""

    def close(self) -> None:
        """Leave the last state visible. Idempotent."""


def open_display(form: LogFormat = "text", job: str = "") -> RunDisplay:
    """The display that fits standard error. `job` is for lines of JSON."""
    draws = form == "text" and stderr_console().is_terminal and _in_foreground()
    return TerminalDisplay() if draws else LogDisplay(form, job)


def _in_foreground() -> bool:
    """False for a job that a shell runs with `&`: what it drew would be over the prompt."""
    with suppress(OSError, AttributeError):  # standard error is not the terminal of a session, or there are none here
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    return True


class TerminalDisplay:
    """One line that is drawn again and again; log lines scroll above it."""

    def __init__(self) -> None:
        console = stderr_console()
        handler = RichHandler(console=console, show_path=False, markup=False, rich_tracebacks=False)
        handler.setFormatter(_WithOptions("%(message)s"))
        self._remove_handler = _log_to(handler)
        fields = ("phase", "messages", "rate", "batch", "checkpoint")
        columns = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in fields]
        self._bar = Progress(SpinnerColumn(), columns[0], BarColumn(bar_width=24), *columns[1:], console=console)
        empty: dict[str, Any] = dict.fromkeys(fields, "") | {"phase": "starting Spark"}
        self._task: TaskID = self._bar.add_task("", total=None, **empty)
        self._bar.start()

    def show(self, view: RunView) -> None:
        rate, batch, checkpoint = view.details
        self._bar.update(
            self._task,
            total=view.total,
            completed=view.done,
            phase=view.phase_text,
            messages=view.messages_text,
            rate=rate,
            batch=batch,
            checkpoint=checkpoint,
        )

    def say(self, text: str) -> None:
        self._bar.console.print(text)

    def close(self) -> None:
        self._bar.stop()
        self._remove_handler()


class LogDisplay:
    """A log line every few seconds while there is something new to say, and when the phase changes."""

    def __init__(self, form: LogFormat = "text", job: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter(form, job, shown=with_options))
        self._remove_handler = _log_to(handler)
        self._logger = logging.getLogger("penstock.run")
        self._log = ViewLog(self._logger, clock)

    def show(self, view: RunView) -> None:
        self._log.show(view)

    def say(self, text: str) -> None:
        self._logger.info("%s", text)

    def close(self) -> None:
        self._remove_handler()


class _WithOptions(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(with_options(super().format(record)))


def _log_to(handler: logging.Handler) -> Callable[[], None]:
    """Send Penstock's log to the handler. Returns a function that undoes it."""
    logger, notices = logging.getLogger("penstock"), logging.getLogger("penstock.admin")
    printed, notices.handlers = notices.handlers, []  # they would say the same again, and between lines of JSON
    before, propagated = logger.level, logger.propagate
    handler.addFilter(lambda record: record.name != PROGRESS_LOGGER)  # the display says the same
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagated
        notices.handlers = printed

    return undo


_STEP_S = 0.1


def run(
    application: Annotated[str, typer.Argument(metavar="APP")],
    call: Call,
    until: Annotated[str | None, typer.Option("--until", metavar="latest")] = None,
    close: Annotated[bool, typer.Option("--close/--no-close")] = True,
    drain: Annotated[bool, typer.Option("--drain")] = False,
    from_checkpoint: Annotated[str | None, typer.Option("--from", metavar="ID")] = None,
    reset_operators: Annotated[list[str] | None, typer.Option("--reset-operator", metavar="ID")] = None,
    debug: Debug = False,
) -> None:
    """Run an application on Spark until it is stopped.

    SIGTERM or Ctrl-C ends the run after the current batch, with a last commit. A second signal ends it at once; the
    next run then processes everything after the last checkpoint again.

    Args:
        application: The application, or a function that returns it: module:object or file.py:object.
        until: `latest`: process what the inputs hold now, then end.
        close: With --until: close windows and fire timers at the end, or leave them for the next run.
        drain: Read nothing: process everything in flight, close windows, fire timers and end.
        from_checkpoint: Begin with this checkpoint, by its ID or label, instead of the last one.
        reset_operators: Drop what waits in this operator and keep all other state; may be repeated. Windows, joins,
            tasks with timers, aggregates (their totals begin at 0 again) and partition_by through a stream can be
            reset.
    """
    loaded, settings = loaded_for_run(application, call)
    root = JobPaths(settings.job.name, settings.job.id).root

    def start() -> Job:
        on_spark: Callable[..., Job] = load(HOSTS["spark"])
        with _audited(call, root, from_checkpoint, reset_operators or ()):
            return on_spark(
                loaded.app,
                settings,
                until=until,
                close=close,
                drain=drain,
                from_checkpoint=from_checkpoint,
                reset_operators=reset_operators or (),
            )

    run_shown(root, settings.job.log_format, start)


def loaded_for_run(application: str, call: Call) -> tuple[LoadedApplication, JobConfig]:
    """An application that can be sent to Spark, and its configuration. Raises ConfigError."""
    if tracebacks_wanted():
        logging.getLogger("penstock").setLevel(logging.DEBUG)  # with it, Spark shows its stacks
    loaded = load_application(application)
    name, stores = loaded.app.name, [store.name for store in loaded.app.graph().stores]
    settings = load_config(call.config, assignments=call.assignments or (), default_job_name=name, stores=stores)
    loaded.ship_by_value()
    return loaded, settings


def run_shown(
    root: str, form: LogFormat, start: Callable[[], Job], meanwhile: Callable[[Job], None] = lambda _: None
) -> None:
    """Run a job to its end, and show it. Signals end it.

    Args:
        root: the job's name and id.
        form: of the log lines.
        start: starts the job.
        meanwhile: called several times a second, until a signal comes. What it raises ends the job, and is raised then.
    """
    with StopSignals() as signals, closing(open_display(form, root)) as display:
        display.say(f"starting Spark for job {root}; this takes some seconds")
        job: Job | None = None
        try:
            job = start()
            signals.count_only()
        except KeyboardInterrupt:
            if job is None:
                display.say("interrupted before the job had started; no message was processed")
                raise typer.Exit(1) from None
            signals.count_only(1)
        _run_to_end(job, signals, display, form, partial(meanwhile, job))


@contextmanager
def _audited(call: Call, job: str, from_checkpoint: str | None, reset_operators: Sequence[str]) -> Iterator[None]:
    """Record a start that takes another state than the last one."""
    changes = {} if from_checkpoint is None else {"checkpoint": f"the last one -> {from_checkpoint}"}
    changes |= {f"operator {each}": "reset" for each in reset_operators}
    if not changes:
        yield
        return
    audited = importlib.import_module("penstock.admin.job.logs").audited
    with call.open(job) as found, audited(found, "run", changes):
        yield


def _run_to_end(
    job: Job, signals: StopSignals, display: RunDisplay, form: LogFormat, meanwhile: Callable[[], None]
) -> None:
    began = time.monotonic()
    display.say(f"job {job.name} started, run {job.run_id}; the output of its tasks is in {job.log_directory}")
    if job.dashboard is not None:
        display.say(f"dashboard: {job.dashboard.logged_url}")
    try:
        stops = _await(job, display, signals, meanwhile)
    except UserCodeError as error:
        display.close()
        report_failed_message(error.failed, job.last_checkpoint)
        raise typer.Exit(error.exit_status) from error
    done = job.progress.total_input_rows if job.progress else 0
    end = f"{counted(done, 'message')} in {time.monotonic() - began:.1f} s, last checkpoint {job.last_checkpoint}"
    tell = display.say
    if form == "text":  # the last line is for people also where the others are lines of a log
        display.close()
        tell = say
    if stops > 1:
        tell(f"job {job.name} was stopped at once: {end}; messages after it will be processed again")
        raise typer.Exit(1)
    tell(f"job {job.name} ended: {end}")


def _await(job: Job, display: RunDisplay, signals: StopSignals, meanwhile: Callable[[], None]) -> int:
    """Wait for the end of the job, showing it and passing on requests to stop; returns how many there were."""
    observer = RunObserver(job)
    told = 0
    while not job.await_termination(_STEP_S):
        display.show(observer.look())
        while told < min(signals.count, 2):
            told += 1
            job.stop(wait=False)
            if told == 1:
                display.say("stopping after the current batch, with a last commit; a second signal stops at once")
            else:
                display.say(f"stopping at once; the last checkpoint is {job.last_checkpoint}")
        try:
            if not told:  # a deployment that is stopped makes no change of charge
                meanwhile()
        except PenstockError:
            job.stop()
            raise
    display.show(observer.look())
    return told


_TOO_MANY = 3


class StopSignals:
    """Counts requests to stop. Main thread only, as a context manager.

    Until `count_only`, the first signal raises KeyboardInterrupt, so that a start can be abandoned wherever it is.
    Others are only counted: the handler does nothing else, whatever the main thread is doing. The third one ends the
    process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._stops = StopCount(clock)
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._interrupt)
        return self

    @property
    def count(self) -> int:
        return self._stops.count

    def count_only(self, already: int = 0) -> None:
        """Count signals from now on, beginning with `already` at least. Call it after the start of Spark, which
        installs its own handler."""
        self._stops.count = max(self._stops.count, already)
        for number in SIGNALS:
            signal.signal(number, self._counted)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._stops.signalled()
        self.count_only()
        raise KeyboardInterrupt

    def _counted(self, number: int, frame: FrameType | None) -> None:
        self._stops.signalled()
        if self._stops.count >= _TOO_MANY:
            os._exit(128 + number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stops.count:  # otherwise this process is ending, and another signal would only print a traceback
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def check(
    application: Annotated[str, typer.Argument(metavar="APP")],
    from_checkpoint: Annotated[str | None, typer.Option("--from", metavar="ID")] = None,
    reset_operators: Annotated[list[str] | None, typer.Option("--reset-operator", metavar="ID")] = None,
    *,
    call: JsonCall,
) -> None:
    """Say everything for which a start of an application would be refused, without a start and without Spark.

    The command reads the configuration, the application, its streams and the last checkpoint, and writes nothing. It
    ends with status 0 if the job could start now.

    Args:
        application: The application, as `penstock run` takes it.
        from_checkpoint: As for `penstock run`: begin with this checkpoint.
        reset_operators: As for `penstock run`; may be repeated.
    """
    from penstock.admin.job.check import check_application

    loaded = load_application(application)
    facts = check_application(
        loaded.app,
        call.config,
        call.assignments,
        from_checkpoint=from_checkpoint,
        reset_operators=reset_operators or (),
    )
    call.show(facts)


def deploy(
    job: JobName,
    application: Annotated[str, typer.Argument(metavar="APP")],
    call: Call,
    tasks: Annotated[int | None, typer.Option("--tasks", metavar="N", min=1)] = None,
    from_checkpoint: Annotated[str | None, typer.Option("--from", metavar="CHECKPOINT")] = None,
    reset_operators: Annotated[list[str] | None, typer.Option("--reset-operator", metavar="ID")] = None,
    rollback: Annotated[bool, typer.Option("--rollback")] = False,
    debug: Debug = False,
) -> None:
    """Run a changed application as a new job that takes over from a running one at a checkpoint.

    The new job is a fork. It makes the batches of the old one with its output held back, until it has nearly caught up.
    Then the old job stops with a last checkpoint and hands over, and the new one makes the rest and sends from there
    on. From then on, the command is as `penstock run` of the new job.

    A process that dies leaves one of the two in charge: give the command again, and it goes on. Until the old job has
    handed over, Ctrl-C leaves it in charge. It may have stopped by then: start it again.

    Args:
        application: The changed application, as for `penstock run`. Its job needs another name than JOB.
        tasks: The number of tasks of the new job; by default that of JOB.
        from_checkpoint: Begin with this checkpoint of JOB, by its ID or label; by default the last.
        reset_operators: Do not take along what waits in this operator, such as a window that the application does not
            have any more; may be repeated.
        rollback: The job of the application is one that has handed over to JOB: bring it back.
    """
    from penstock.admin.job.deploy import Deployment

    loaded, settings = loaded_for_run(application, call)
    with call.open(job) as old:
        deployment = Deployment(
            old,
            settings,
            loaded.app,
            from_checkpoint=from_checkpoint,
            tasks=tasks,
            reset_operators=reset_operators or (),
            rollback=rollback,
            mover=_on_spark,
        )
        try:
            run_shown(deployment.paths.root, settings.job.log_format, deployment.start, deployment.step)
        finally:
            if not deployment.is_over:
                say(deployment.outcome())


def _on_spark(config: JobConfig) -> Mover:
    moved: Any = importlib.import_module("penstock.spark.stored_state")
    mover: Mover = moved.mover(config, f"{config.job.name}-{config.job.id} repartition")
    return mover
