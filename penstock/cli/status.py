"""`penstock status`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Annotated, Any

import typer

from penstock.admin.job.drain_status import DrainRequestFacts
from penstock.admin.job.metrics import SideInputStatus, TableUse, metrics_of
from penstock.admin.job.status import BackendStatus, JobStatus, UnreadableJob, WatermarkStatus, look_at, statuses
from penstock.admin.job.status import status as job_status
from penstock.admin.jobs import load_without_job, open_all_jobs
from penstock.admin.questions import Questions
from penstock.admin.startpoint.facts import TakenFacts
from penstock.api.time.firing import END_OF_TIME
from penstock.base.wording import counted, duration_text, lag_text, listed, utc_text
from penstock.batch.watermarks import holds_back_text
from penstock.cli.drain import print_drain
from penstock.cli.shared.completion import job_names
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import JsonCall
from penstock.cli.shared.output import (
    print_facts,
    print_json,
    print_json_line,
    print_table,
    show,
    stderr_console,
    stdout_console,
    time_text,
)
from penstock.errors import ConfigError, RetryableError

_WATCH_SECONDS = 1.0

AnyJob = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB", help="The job: `name-id`, or its name alone. Without it, all jobs.", autocompletion=job_names
    ),
]


def status(
    job: AnyJob = None,
    *,
    call: JsonCall,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait",
            help="Watch the lease, for `job.lease.ms` at most, until it is certain whether the job is running.",
        ),
    ] = True,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="Show the job's metrics instead: at most ten seconds old, or those at the end of its last run.",
        ),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show one job on the whole screen, until it no longer runs.")
    ] = False,
) -> None:
    """Show whether a job is running and how far it has read, or list all jobs.

    The command changes nothing. For one job it also shows the last checkpoint, state, inputs, startpoints and the
    progress of a drain. With --watch and --json, each change is one line.
    """
    if watch and metrics:
        raise ConfigError("--watch and --metrics exclude each other: give one of them")
    if watch:
        _watch(job, call)
        return
    if metrics:
        _show_metrics(job, call)
        return
    if job is None:
        _show_all(call, wait=wait)
        return
    questions = Questions()
    with call.open(job) as found:
        with _saying("watching the lease (--no-wait skips this)"):
            look = look_at(found, questions, wait=wait)
        if not call.as_json:  # systems that are away take some seconds
            _show_known(look.known)
        with _saying("asking the systems"):
            questions.await_answers()
        facts = look.completed()
    call.show(facts, _show_asked)


def _saying(doing: str) -> AbstractContextManager[object]:
    console = stderr_console()
    return console.status(doing) if console.is_terminal else nullcontext()


def _watch(job: str | None, call: JsonCall) -> None:
    if job is None:
        raise ConfigError("--watch shows one job: name it, as `penstock status JOB --watch`")
    if sys.stdout.isatty() and not call.as_json:
        _watch_on_screen(job, call)
        return
    before: JobStatus | None = None
    while before is None or before.status == "running":
        if before is not None:
            time.sleep(_WATCH_SECONDS)
        with call.open(job) as found:
            facts = job_status(found)
        if call.as_json and facts != before:
            print_json_line(facts)
        elif facts != before:
            if before is not None:
                typer.echo()
            _show(facts)
        before = facts


def _watch_on_screen(job: str, call: JsonCall) -> None:
    """Fill the terminal until the job no longer runs, or Ctrl-C. Then its status stays there."""
    from rich.live import Live

    from penstock.cli.shared.screen import screen_of
    from penstock.dashboard.look import look_at
    from penstock.dashboard.rates import History

    history = History()
    with suppress(KeyboardInterrupt), Live(console=stdout_console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                with call.open(job) as found:
                    page = look_at(found, history)
            except RetryableError as error:
                page = {"error": str(error), "status": "running"}
            live.update(screen_of(page, live.console.width), refresh=True)
            if page["status"] != "running":
                break
            time.sleep(_WATCH_SECONDS)
    with call.open(job) as found:
        _show(job_status(found))


def _show_metrics(job: str | None, call: JsonCall) -> None:
    if job is None:
        raise ConfigError("--metrics shows the metrics of one job: name it, as `penstock status JOB --metrics`")
    with call.open(job) as found:
        shown = metrics_of(found).to_dict()
    if call.as_json:
        print_json(shown)
        return
    for source, groups in shown.items():
        for group, own in groups.items():
            rows = [(name, _metric(value)) for name, value in own.items()]
            print_table(f"{source}: {group}" if group != source else source, ("metric", "value"), rows, right="value")


def _metric(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{value:,}"
    average = value["total_ns"] / max(1, value["count"]) / 1e6
    return f"{value['count']:,} of {average:,.1f} ms, at most {value['max_ns'] / 1e6:,.1f} ms"


def _show_all(call: JsonCall, *, wait: bool) -> None:
    with open_all_jobs(call.config, call.assignments) as jobs:
        found = statuses(jobs, wait=wait)
    if call.as_json:
        print_json(found)
        return
    print_table(
        f"Jobs in {load_without_job(call.config, call.assignments).job.root}",
        ("job", "status", "lag", "last checkpoint", "batch", "at", "run"),
        [_row(one) for one in found],
        right="lag batch",
        first_to_go="run, at, batch",
    )
    for one in found:
        if not isinstance(one, JobStatus):
            say(f"error: job {one.job}: {one.problem}")
        elif problem := next((each for each in one.inputs if each.lag is None and each.problem is not None), None):
            say(f"warning: the lag of job {one.job} is not known: stream `{problem.stream}`: {problem.problem}")


def _lag(lag: int | None, unit: str) -> int | str | None:
    return lag if lag is None or unit == "message" else counted(lag, unit)


def _row(found: JobStatus | UnreadableJob) -> tuple[object, ...]:
    if not isinstance(found, JobStatus):
        return (found.job, "cannot be read", *[None] * 5)
    last, lags = found.last_checkpoint, [each.lag for each in found.inputs]
    behind = lag_text((each.lag or 0, each.lag_unit) for each in found.inputs)
    lag = None if None in lags or not lags else behind or 0
    if last is None:
        return (found.job, found.status, lag, None, None, None, found.run_id)
    at = utc_text(last.batch_time_ms) if last.batch_time_ms else None
    return (found.job, found.status, lag, last.id, last.batch, at, found.run_id)


def _show(facts: JobStatus) -> None:
    _show_known(facts)
    _show_asked(facts)


def _show_known(facts: JobStatus) -> None:
    """Show what the job's folder has."""
    last = facts.last_checkpoint
    rows: list[tuple[str, object]] = [
        ("job", facts.job),
        *_status_rows(facts),
        *_phase_rows(facts),
        *([("waits for", f"since {utc_text(facts.outage.since_ms)}: {facts.outage.reason}")] if facts.outage else []),
        ("last holder" if facts.has_ended else "holder", facts.holder),
        ("run id", facts.run_id),
        ("epoch", facts.epoch),
        ("job root", facts.root),
        ("container logs", facts.logs),
        ("containers here", ", ".join(f"{each.container} (pid {each.pid})" for each in facts.containers) or "none"),
        ("checkpoints", facts.checkpoints),
    ]
    if last is not None:
        rows += [
            ("last checkpoint", last.id),
            ("  kind", last.kind if last.ended is None else f"{last.kind}, the run's last: {last.ended}"),
            ("  batch", f"{last.batch}, at {utc_text(last.batch_time_ms)}" if last.batch_time_ms else last.batch),
            ("  tasks", last.task_count),
            ("  stores", ", ".join(sorted(last.stores)) or "none"),
        ]
    if facts.dead_letters:
        rows.append(("dead letters", f"{facts.dead_letters:,} in its last run, {_seen(facts)}"))
    if facts.ways:
        rows.append(("batches", f"{_ways(facts.ways)}; in its last run, {_seen(facts)}"))
    rows += _drain_rows(facts)
    print_facts(rows)
    for each in facts.drain.unreadable:
        say(f"warning: {each.problem}. No run drains for it: delete the object")
    for awaiting in facts.drain.awaiting:
        whom = "the next run" if awaiting.run_id is None else f"run {awaiting.run_id}"
        say(f"note: request {_request(awaiting)}: {whom} drains as it starts; `penstock drain --cancel` takes it back")
    for late in facts.drain.late:
        say(f"note: the run that request {late.uuid} was to drain has ended; the next start deletes the request")
    if facts.drain.progress is not None:
        print_drain(facts.drain.progress, running=not facts.has_ended)
    if facts.backends:
        backends = [(each.store, each.backend, _markers(each)) for each in facts.backends]
        print_table("State, as of the last checkpoint", ("store", "backend", "can restore"), backends)
    show(*facts.wings.values())
    if facts.side_stores:
        print_table("Stores that the job only reads", ("store", "filled by"), [(e.store, e) for e in facts.side_stores])
    _show_side_inputs(facts)
    _show_tables(facts)
    _show_intermediate(facts)
    _show_watermarks(facts)
    _show_startpoints(facts)


def _show_asked(facts: JobStatus) -> None:
    """Show what the systems have answered."""
    _show_inputs(facts)
    if rows := _outbox_rows(facts):
        print_facts(rows)


def _status_rows(facts: JobStatus) -> list[tuple[str, object]]:
    if facts.failure is None:
        return [("status", f"{facts.status}: {facts.reason}")]
    failure = facts.failure
    rows: list[tuple[str, object]] = [("status", f"failed: {failure.error}")]
    if failure.place is not None:
        rows.append(("  in", failure.place))
    if failure.since_ms is not None:
        rows.append(("  since", utc_text(failure.since_ms)))
    return rows


def _phase_rows(facts: JobStatus) -> list[tuple[str, object]]:
    phase = facts.phase
    if phase is None or phase.phase == "running":
        return []
    progress = f" ({phase.progress})" if phase.progress else ""
    return [("phase", f"{phase.phase}{progress}, since {utc_text(phase.since_ms)}")]


def _outbox_rows(facts: JobStatus) -> list[tuple[str, object]]:
    if facts.outbox is None:
        return []
    outputs = ", ".join(f"{count:,} to {stream}" for stream, count in facts.outbox.outputs.items())
    done = facts.outbox.published
    if done == facts.outbox.messages:
        return [("exactly once", f"{outputs}: published")]
    there = " (how many are published is not known)" if done is None else f", {done:,} of them are published"
    publishes = "the next start makes sure of it" if facts.has_ended else "the job publishes them"
    return [("exactly once", f"{outputs}{there}: {publishes}")]


def _ways(ways: Mapping[str, int]) -> str:
    reasons = {way.removeprefix("spark-"): count for way, count in ways.items() if way != "direct"}
    by_spark = f"{sum(reasons.values()):,} by Spark"
    if reasons:
        by_spark += f" ({listed([f'{count:,} {reason}' for reason, count in reasons.items()])})"
    return f"{ways.get('direct', 0):,} direct, {by_spark}"


def _drain_rows(facts: JobStatus) -> list[tuple[str, object]]:
    drain = facts.drain
    match drain.step:
        case None:
            return []
        case "asked" | "draining" | "last commit" if facts.has_ended:
            means = "the job is not running, and its next start drains"
        case "asked":
            means = "the run has not noticed it yet"
        case "draining":
            means = "the run reads nothing more, and ends once everything in flight is processed"
        case "last commit":
            means = "everything in flight is processed, and the drain can no longer be cancelled"
        case "drained":
            means = "nothing is in flight, and the next start may be of a changed program"
    return [("drain", f"{drain.step}: {means}"), *(("  request", _request(each)) for each in drain.requests)]


def _request(request: DrainRequestFacts) -> str:
    asked = "" if request.asked_ms is None else f", asked at {utc_text(request.asked_ms)}"
    return f"{request.uuid}{asked}, mode {request.mode}"


def _show_watermarks(facts: JobStatus) -> None:
    if facts.watermarks:
        columns = ("operator", "watermark", "behind")
        print_table("Event time, as of the last checkpoint", columns, map(_watermark, facts.watermarks), right="behind")


def _show_tables(facts: JobStatus) -> None:
    rows = [(each.table, each.in_use or "none yet", _loading(each)) for each in facts.tables]
    if rows:
        print_table(f"Pushed tables, {_seen(facts)}", ("table", "version", "loading"), rows, right="version")
    for each in facts.tables:
        if each.in_use is None and each.loading is None and facts.status == "running":
            say(
                f"warning: table `{each.table}` has no version yet, and the first batch waits for one. `penstock table "
                f"versions {facts.job} {each.table}` says whether one was refused, and why"
            )
        if each.failing:
            say(
                f"warning: version {each.loading} of table `{each.table}` cannot be loaded; the job keeps trying. See "
                "the logs of the driver and the containers"
            )


def _seen(facts: JobStatus) -> str:
    return "a few seconds ago" if facts.metrics_ms is None else f"at {utc_text(facts.metrics_ms)}"


def _loading(table: TableUse) -> str | None:
    return None if table.loading is None else f"version {table.loading}, {table.percent} %"


def _show_intermediate(facts: JobStatus) -> None:
    rows = [
        (each.stream, each.writer, each.generation, each.unread, _reached(each.watermark_ms))
        for each in facts.intermediate
    ]
    if rows:
        columns = ("stream", "written by", "generation", "unread", "watermark")
        print_table("Intermediate streams, as of the last checkpoint", columns, rows, right="generation unread")


def _show_side_inputs(facts: JobStatus) -> None:
    def state(each: SideInputStatus) -> str | None:
        if each.failing:
            return "fails"
        return "the first batch waits for it" if each.catching_up else None

    rows = [(each.store, each.partition, each.lag, state(each)) for each in facts.side_inputs]
    if rows:
        print_table(f"Side inputs, {_seen(facts)}", ("store", "partition", "lag", "state"), rows, right="lag")
    for store in sorted({each.store for each in facts.side_inputs if each.failing}):
        say(f"warning: the side inputs of store `{store}` fail; the job keeps trying. See the logs of the containers")


def _reached(watermark_ms: int | None) -> str | None:
    if watermark_ms is None:
        return None
    return "its inputs have ended" if watermark_ms == END_OF_TIME else utc_text(watermark_ms)


def _watermark(status: WatermarkStatus) -> tuple[object, ...]:
    if status.watermark_ms is None or status.delay_ms is None:
        return (status.operator, "its inputs have ended", None)
    return (status.operator, utc_text(status.watermark_ms), duration_text(status.delay_ms))


def _show_startpoints(facts: JobStatus) -> None:
    if facts.taken_startpoints is not None:
        _show_taken(facts.taken_startpoints)
    if facts.quiet_offsets is not None:
        left = counted(facts.quiet_offsets, "offset")
        say(f"note: nothing is sent to outputs yet: {left} are to be read again first (--with-output after)")
    if facts.startpoints:
        rows = [
            (e.stream, e.partition, e.task, e.text, e.state_choice, time_text(e.expires_ms), e.status)
            for e in facts.startpoints
        ]
        columns = ("stream", "partition", "task", "startpoint", "state", "expires", "status")
        print_table(
            "Startpoints that wait for the next start", columns, rows, right="partition", first_to_go="expires, state"
        )
    for each in facts.startpoints:
        if each.status == "unreadable":
            say(f"warning: {each.problem}")


def _show_taken(taken: TakenFacts) -> None:
    if taken.moved:
        rows = [
            (e.stream, e.partition, e.before, e.began_at, f"{e.replayed} of {e.to_replay}", e.skipped)
            for e in taken.moved
        ]
        columns = ("stream", "partition", "was at", "began at", "read again", "skipped")
        print_table(f"Moved by startpoints, at checkpoint {taken.checkpoint}", columns, rows, right="partition skipped")
    if taken.last is not None and taken.began_with != taken.last:
        say(f"note: the run began with state and positions of checkpoint {taken.began_with}, not of {taken.last}")


def _markers(status: BackendStatus) -> str:
    if status.tasks_with_marker == status.tasks:
        return f"all {status.tasks} tasks"
    return f"{status.tasks_with_marker} of {status.tasks} tasks: its base is being made"


def _show_inputs(facts: JobStatus) -> None:
    if not facts.inputs:
        return
    rows: list[tuple[object, ...]] = [
        (each.stream, part.partition, part.next_offset, part.upcoming, _lag(part.lag, each.lag_unit))
        for each in facts.inputs
        for part in each.partitions
    ]
    rows += [
        (each.stream, "total", None, None, _lag(each.lag, each.lag_unit))
        for each in facts.inputs
        if len(each.partitions) > 1
    ]
    columns = ("stream", "partition", "next", "upcoming", "lag")
    print_table("Inputs, as of the last checkpoint", columns, rows, right="partition next upcoming lag")
    for each in facts.inputs:
        if each.problem is not None:
            say(f"warning: stream `{each.stream}`: {each.problem}")
        for part in each.partitions:
            if part.partition == each.held_back_by:
                say(f"note: {holds_back_text(each.stream, part.partition, part.event_time_ms)}")
            if part.open_transaction is not None:
                say(f"warning: stream `{each.stream}` partition {part.partition}: {part.open_transaction}")
            if part.lost:
                most = "" if each.dense_offsets else "at most "
                say(
                    f"warning: the state lacks {most}{counted(part.lost, 'message')} of `{each.stream}` partition "
                    f"{part.partition}: they were deleted before the job had read them (on.data.loss=skip)"
                )
        if not each.dense_offsets and each.lag_unit == "message":
            say(f"note: the offsets of `{each.stream}` have gaps: its lag counts offsets, and may be of fewer messages")
