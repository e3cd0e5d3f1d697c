"""`penstock run`, and the signals that end it."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from penstock.base.plugins import HOSTS, load
from penstock.base.wording import counted
from penstock.cli.run.view import RunDisplay, RunObserver, open_display
from penstock.cli.shared.application import load_application
from penstock.cli.shared.errors import report_failed_message, say, tracebacks_wanted
from penstock.cli.shared.options import Call, Debug
from penstock.config.load import load_config
from penstock.config.settings import LogFormat
from penstock.driver.handle.program import SIGNALS, StopCount
from penstock.errors import UserCodeError
from penstock.job.paths import JobPaths

if TYPE_CHECKING:
    from penstock.driver.handle.job import Job

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
        from_checkpoint: Begin with this checkpoint instead of the last one.
        reset_operators: Drop what waits in this operator and keep all other state; may be repeated. Windows, joins,
            tasks with timers, aggregates (their totals begin at 0 again) and partition_by through a stream can be
            reset.
    """
    if tracebacks_wanted():
        logging.getLogger("penstock").setLevel(logging.DEBUG)  # with it, Spark shows its stacks
    loaded = load_application(application)
    name, stores = loaded.app.name, [store.name for store in loaded.app.graph().stores]
    settings = load_config(call.config, assignments=call.assignments or (), default_job_name=name, stores=stores)
    paths = JobPaths(settings.job.name, settings.job.id)
    form = settings.job.log_format
    with StopSignals() as signals, closing(open_display(form, paths.root)) as display:
        display.say(f"starting Spark for job {paths.root}; this takes some seconds")
        job: Job | None = None
        try:
            loaded.ship_by_value()
            start: Callable[..., Job] = load(HOSTS["spark"])
            with _audited(call, paths.root, from_checkpoint, reset_operators or ()):
                job = start(
                    loaded.app,
                    settings,
                    until=until,
                    close=close,
                    drain=drain,
                    from_checkpoint=from_checkpoint,
                    reset_operators=reset_operators or (),
                )
            signals.count_only()
        except KeyboardInterrupt:
            if job is None:
                display.say("interrupted before the job had started; no message was processed")
                raise typer.Exit(1) from None
            signals.count_only(1)
        _run_to_end(job, signals, display, form)


@contextmanager
def _audited(call: Call, job: str, from_checkpoint: str | None, reset_operators: Sequence[str]) -> Iterator[None]:
    """Record a start that takes another state than the last one."""
    changes = {} if from_checkpoint is None else {"checkpoint": f"the last one -> {from_checkpoint}"}
    changes |= {f"operator {each}": "reset" for each in reset_operators}
    if not changes:
        yield
        return
    audited = importlib.import_module("penstock.admin.job.audit").audited
    with call.open(job) as found, audited(found, "run", changes):
        yield


def _run_to_end(job: Job, signals: StopSignals, display: RunDisplay, form: LogFormat) -> None:
    began = time.monotonic()
    display.say(f"job {job.name} started, run {job.run_id}; the output of its tasks is in {job.log_directory}")
    if job.dashboard is not None:
        display.say(f"dashboard: {job.dashboard.logged_url}")
    try:
        stops = _await(job, display, signals)
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


def _await(job: Job, display: RunDisplay, signals: StopSignals) -> int:
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
