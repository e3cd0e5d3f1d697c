"""`penstock startpoint list`, `delete` and `export`; `set` and `import` stand in files of their own."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import typer

from penstock.admin.jobs import FoundJob, open_job
from penstock.admin.startpoint.exchange import exported_lines
from penstock.admin.startpoint.facts import RequestFacts, request_facts
from penstock.admin.startpoint.inputs import StartpointJob, open_startpoint_job
from penstock.api.ssp import SystemStream
from penstock.checkpoint.log import CheckpointLog
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json, print_table
from penstock.cli.startpoint import import_ as startpoint_import
from penstock.cli.startpoint import set as startpoint_set
from penstock.cli.startpoint.set import AllPartitions, PartitionOption, StreamOption, parse_task
from penstock.errors import ConfigError, NotFoundError, PenstockError
from penstock.startpoint.decide import Sorted, sort_out, taken_uuids
from penstock.startpoint.manager import StartpointManager
from penstock.startpoint.request import StartpointRequest
from penstock.wording import utc_text

app = typer.Typer(help="Say where a job begins in its inputs at its next start.", no_args_is_help=True)
app.command("set")(startpoint_set.set_startpoint)
app.command("import")(startpoint_import.import_startpoints)


@app.command("list")
def list_startpoints(
    job: JobName,
    application: startpoint_set.AppOption = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List the startpoints that wait for the job's next start, and the offsets that they mean now."""
    with open_job(job, config, assignments) as found:
        requests = waiting(found)
        ttl_ms = found.config.job.startpoint_ttl_ms
        plain = request_facts(requests, None, ttl_ms)
    if plain:
        try:
            with open_startpoint_job(job, application, config, assignments) as whole:
                resolved = {request: _resolved(whole, request) for request in requests.live}
                plain = request_facts(requests, whole.inputs.tasks, ttl_ms, resolved)
        except PenstockError as error:
            say(f"warning: what they mean now is not known: {error}")
    if as_json:
        print_json(plain)
    else:
        show_requests(plain)


@dataclass(frozen=True, slots=True)
class DeletedFacts:
    """The requests that were deleted."""

    job: str
    deleted: tuple[RequestFacts, ...]


@app.command("delete")
def delete_startpoint(
    job: JobName,
    stream: StreamOption,
    partition: PartitionOption = None,
    all_partitions: AllPartitions = False,
    task: startpoint_set.TaskOption = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Delete startpoints that no start has taken yet: those for the partitions or, with --task, of that task alone."""
    if bool(partition) == all_partitions:
        raise ConfigError("name the partitions: --partition N, which may be repeated, or --all-partitions")
    wanted, name = SystemStream.parse(stream), parse_task(task)
    with open_job(job, config, assignments) as found:
        manager = StartpointManager(found.objects, found.paths)
        requests = waiting(found)

        def is_meant(request: StartpointRequest) -> bool:
            key = request.key
            here = all_partitions or key.ssp.partition in (partition or ())
            return key.ssp.system_stream == wanted and here and key.task == name

        meant = Sorted(*(tuple(filter(is_meant, each)) for each in (requests.live, requests.expired, requests.taken)))
        every = (*meant.live, *meant.expired, *meant.taken)
        if not every:
            raise NotFoundError(
                f"there is no such startpoint for `{stream}`: `penstock startpoint list {found.paths.root}` shows "
                "those that wait; one of a task is named with --task"
            )
        manager.delete(every)
        facts = DeletedFacts(found.paths.root, request_facts(meant, None, found.config.job.startpoint_ttl_ms))
    if as_json:
        print_json(facts)
        return
    for each in facts.deleted:
        task_text = "" if each.task is None else f" of {each.task}"
        say(f"deleted: `{each.stream}` partition {each.partition}{task_text}, {each.text}")


@app.command("export")
def export_startpoints(job: JobName, config: ConfigFile = None, assignments: Assignments = None) -> None:
    """Print the startpoints that wait as Samza's coordinator stream has them: one JSON line with key and value each.

    Samza knows neither --with-state nor --clamp: these are left out, and named.
    """
    with open_job(job, config, assignments) as found:
        lines, notes = exported_lines(waiting(found).live)
    for note in notes:
        say(f"note: {note}")
    sys.stdout.writelines(f"{line}\n" for line in lines)


def waiting(found: FoundJob) -> Sorted:
    """The requests of a job, by what a start now would make of them."""
    manager = StartpointManager(found.objects, found.paths)
    requests = manager.requests()
    taken = taken_uuids(CheckpointLog(found.objects, found.paths).read("report").checkpoints) if requests else ()
    return sort_out(requests, taken, time.time_ns() // 1_000_000, found.config.job.startpoint_ttl_ms)


def show_requests(facts: tuple[RequestFacts, ...]) -> None:
    """The requests as a table."""
    print_table(
        "Startpoints that wait for the next start",
        ("stream", "partition", "task", "startpoint", "means now", "state", "made", "expires", "status"),
        [
            (
                *(each.stream, each.partition, each.task, each.text, each.resolves_to, each.with_state),
                *(utc_text(each.created_ms), utc_text(each.expires_ms), each.status),
            )
            for each in facts
        ],
        right="partition",
        first_to_go="made, expires, means now, state",
    )
    for each in facts:
        if each.problem is not None:
            say(f"warning: the job will not start: {each.problem}")


def _resolved(job: StartpointJob, request: StartpointRequest) -> int | str:
    try:
        job.decide([request])
        return job.resolve(request)
    except PenstockError as error:
        return str(error)
