"""`penstock status`, also on the whole screen of a terminal, `penstock logs` and `penstock dashboard`: a person watches
them until Ctrl-C.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.admin.job.look import look_at, statuses
from penstock.admin.job.look import status as job_status
from penstock.admin.job.status import JobStatus, list_facts, metrics_of
from penstock.admin.jobs import load_without_job, open_all_jobs
from penstock.admin.questions import Questions
from penstock.base.wording import escaped, listed
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Call, JobName, JsonCall, job_names
from penstock.cli.shared.output import fitting, print_json, print_json_line, show, stderr_console, stdout_console
from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.facts import Facts, FactTable

if TYPE_CHECKING:
    from penstock.admin.jobs import FoundJob
    from penstock.dashboard.view import Document


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
    wait: Annotated[bool, typer.Option("--wait/--no-wait")] = True,
    metrics: Annotated[bool, typer.Option("--metrics")] = False,
    watch: Annotated[bool, typer.Option("--watch")] = False,
) -> None:
    """Show whether a job is running and how far it has read, or list all jobs.

    The command changes nothing. For one job it also shows the last checkpoint, state, inputs, startpoints and the
    progress of a drain. With --watch and --json, each change is one line.

    Args:
        wait: Watch the lease, for `job.lease.ms` at most, until it is certain whether the job is running.
        metrics: Show the job's metrics instead: at most ten seconds old, or those at the end of its last run.
        watch: Show one job on the whole screen, until it no longer runs.
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
            show(look.known.known_facts())
        with _saying("asking the systems"):
            questions.await_answers()
        facts = look.completed()
    call.tell(facts, lambda each: show(each.asked_facts()))


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
            show(facts.as_facts())
        before = facts


def _watch_on_screen(job: str, call: JsonCall) -> None:
    """Fill the terminal until the job no longer runs, or Ctrl-C. Then its status stays there."""
    from rich.live import Live

    from penstock.dashboard.watch import look_at
    from penstock.dashboard.work import History

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
        show(job_status(found).as_facts())


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
            title = f"{source}: {group}" if group != source else source
            show(Facts({}, (FactTable.of(title, "metric, value>", rows),)))


def _metric(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{value:,}"
    average = value["total_ns"] / max(1, value["count"]) / 1e6
    return f"{value['count']:,} of {average:,.1f} ms, at most {value['max_ns'] / 1e6:,.1f} ms"


def _show_all(call: JsonCall, *, wait: bool) -> None:
    with open_all_jobs(call.config, call.assignments) as jobs:
        found = statuses(jobs, wait=wait)
    call.tell(found, lambda each: show(list_facts(each, load_without_job(call.config, call.assignments).job.root)))


_BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_POINTS = 60
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLORS = {"good": "green", "warning": "yellow", "bad": "red", "idle": "white", "plain": "blue"}


def _text(text: str, style: str = "") -> Text:
    """A text whose control characters do nothing to the terminal."""
    return Text(_CONTROLS.sub("\ufffd", text), style=style)


def screen_of(page: Document, width: int) -> RenderableType:
    """The page of a job on a screen of this width. What does not fit at its end is cut."""
    if "error" in page:
        return Panel(_text(page["error"]), title="error", border_style="red")
    verdict = page["verdict"]
    color = _COLORS[verdict["level"]]
    lines = [
        _text(verdict["text"], f"bold {color}"),
        *map(_text, verdict["why"]),
        *(_text(line, "dim") for line in page["next"]),
    ]
    tables = [_table(each, width) for each in page["tables"]]
    return Group(Panel(Group(*lines), title=page["job"], border_style=color), *_rates(page["series"]), *tables)


def _rates(series: dict[str, Any]) -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 2))
    for what, unit in (("read", "/s read"), ("sent", "/s sent"), ("lag", " behind")):
        for stream, values in series[what].items():
            last = values[-1]
            grid.add_row(_text(stream), bars(values), "" if last is None else f"{last:,.0f}{unit}")
    if grid.row_count:
        yield grid


def bars(values: Sequence[float | None]) -> str:
    """The last values as bars of eight heights, from 0 to the largest.

    Example:
        >>> from penstock.cli.watch import bars
        >>> bars([0, None, 7, 14])
        '\u2581 \u2585\u2588'
    """
    shown = values[-_POINTS:]
    top = max((value for value in shown if value is not None), default=0.0)
    steps = len(_BARS) - 1
    return "".join(" " if v is None else _BARS[round(max(v, 0.0) / top * steps) if top > 0 else 0] for v in shown)


def _table(found: Document, width: int) -> RenderableType:
    shown = fitting(found["columns"], found["rows"], width, found["first_to_go"])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(found["title"], style="italic"), title_justify="left")
    for name in (found["columns"][place] for place in shown):
        table.add_column(name, justify="right" if name in found["right"] else "left", overflow="ellipsis", no_wrap=True)
    for row in found["rows"]:
        table.add_row(*(_text(row[place]) for place in shown))
    return table


def logs(
    job: JobName,
    *,
    call: JsonCall,
    lines: Annotated[int, typer.Option("-n", min=0, metavar="LINES")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
) -> None:
    """Show what a job's containers on this host have logged and printed, by time.

    Each line begins with the name of its container. The driver's own log is where the program writes it.

    Args:
        lines: At most this many lines, of all containers together.
        follow: Continue with new lines, until Ctrl-C.
    """
    from penstock.admin.job.logs import container_logs

    try:
        with call.open(job) as found:
            for line in container_logs(found, lines, follow=follow):
                if call.as_json:
                    print_json_line(line)
                else:
                    typer.echo(f"{escaped(line.container)}  {escaped(line.text)}")
    except KeyboardInterrupt:
        if not follow:
            raise


PORT = 8450
TOKEN = "PENSTOCK_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with the token: an option could be read by others on the host."""


def dashboard(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB", autocompletion=job_names)] = None,
    *,
    call: Call,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65535)] = PORT,
) -> None:
    """Serve a page on which people look at jobs, until Ctrl-C.

    The page shows whether a job keeps up and what holds it back, its graph, inputs, batches, commits, stores and
    errors, running or not. It can stop and drain a job and set startpoints. It asks for the token in the address
    that this command prints. PENSTOCK_DASHBOARD_TOKEN sets the token, which then is not printed.

    Args:
        jobs: Only these jobs; without any, all.
        host: The address to listen on. All but 127.0.0.1 can be reached.
        port: 0 for any free one.
    """
    from penstock.dashboard.server import Dashboard
    from penstock.dashboard.watch import Watches

    names = []
    for each in jobs or ():
        with call.open(each) as found:
            names.append(found.paths.root)

    @contextmanager
    def open_job(name: str) -> Iterator[FoundJob]:
        if names and name not in names:
            raise NotFoundError(f"this dashboard shows {listed([f'`{each}`' for each in names])} only")
        with call.open(name) as found:
            yield found

    @contextmanager
    def open_all() -> Iterator[list[FoundJob]]:
        with open_all_jobs(call.config, call.assignments) as found:
            yield [each for each in found if not names or each.paths.root in names]

    ended = threading.Event()

    def end(number: int, _: object) -> None:
        if ended.is_set():
            os._exit(128 + number)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    watches = Watches(open_job, open_all)
    home = names[0] if len(names) == 1 else ""
    served = Dashboard(watches, open_job, host=host, port=port, token=os.environ.get(TOKEN) or None, home=home)
    try:
        typer.echo(served.printed_url)
        token = "" if not os.environ.get(TOKEN) else f" It asks for the token in {TOKEN}."
        say(f"Open this address in a browser.{token} Ctrl-C ends the dashboard, and no job.")
        ended.wait()
    finally:
        served.close()
