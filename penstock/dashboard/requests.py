"""Requests of a page: changes, each of which says what it will do, and does that once it is confirmed; and look-ups
of the entries of a store, dead letters, logs, and the objects that a collection would delete.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from penstock.admin.job.drain import cancel_drain, drain
from penstock.admin.job.logs import container_logs
from penstock.admin.job.look import status
from penstock.admin.job.running import stop
from penstock.admin.job.status import JobStatus, graph
from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.set import AskedFacts, set_startpoint
from penstock.admin.startpoint.waiting import RequestFacts, delete_startpoints
from penstock.admin.state.held import collect_garbage, state_versions
from penstock.admin.state.reading import open_version
from penstock.admin.state.serdes import Texts, parse_hex, store_serdes
from penstock.admin.stream.found import ConfigSources, FoundStream, StreamTail
from penstock.api import requests
from penstock.api.ssp import SystemStream
from penstock.base.wording import counted, printable, size_text, utc_text
from penstock.dashboard.view import Document, page_table
from penstock.errors import ConfigError, NotFoundError, PenstockError, RetryableError
from penstock.facts import FactTable
from penstock.state.backends.registry import summed
from penstock.system.registry import open_system

Given = Mapping[str, Any]
"""The fields that a page sends with an action."""
_CANCEL_S = 60.0


@dataclass(frozen=True, slots=True)
class Action:
    """A change. `plan` writes nothing, and says what `do` would do; `do` says what it has done."""

    plan: Callable[[FoundJob, Given], list[str]]
    do: Callable[[FoundJob, Given], list[str]]

    def answer(self, job: FoundJob, given: Given) -> dict[str, Any]:
        """Say what it would do. If the page confirms what it was told, and that still holds, do it."""
        plan = self.plan(job, given)
        if given.get("confirmed") is not True:
            return {"lines": plan, "done": False}
        if given.get("plan") != plan:
            raise PenstockError("the job has changed meanwhile, and nothing was done: look at what would happen now")
        return {"lines": self.do(job, given), "done": True}


def _plan_stop(job: FoundJob, given: Given) -> list[str]:
    return [
        f"Run {_running(job).run_id} stops after its current batch, with a last commit. Nothing is lost.",
        "The next start continues from that commit.",
    ]


def _running(job: FoundJob) -> JobStatus:
    found = status(job, wait=False)
    if found.has_ended:
        raise NotFoundError(f"job {found.job} is not running: {found.reason}")
    return found


def _stop(job: FoundJob, given: Given) -> list[str]:
    found = stop(job, wait=False, run_id=_running(job).run_id)
    return [f"Run {found.run_id} was asked to stop."]


def _plan_drain(job: FoundJob, given: Given) -> list[str]:
    found = status(job, wait=False)
    who = "The next run, as it starts," if found.has_ended else f"Run {found.run_id}"
    return [
        f"{who} reads no more input, processes everything in flight and everything that waits for a time, and ends.",
        "Windows and joins emit what they hold. The drain can be cancelled until its last commit begins.",
    ]


def _drain(job: FoundJob, given: Given) -> list[str]:
    found = status(job, wait=False)
    drain(job, run_id=None if found.has_ended else found.run_id)
    return ["The job was asked to drain. The page shows how far it is."]


def _plan_cancel(job: FoundJob, given: Given) -> list[str]:
    asked = status(job, wait=False).drain
    if not asked.requests and not asked.awaiting:
        raise NotFoundError(f"nobody has asked job {job.paths.root} to drain, or it has drained already")
    return ["The requests to drain are withdrawn. A run that drains goes back to its last checkpoint and continues."]


def _cancel(job: FoundJob, given: Given) -> list[str]:
    cancel_drain(job, timeout_s=_CANCEL_S)
    return ["The drain was cancelled."]


def _startpoint(job: FoundJob, given: Given, *, dry_run: bool) -> AskedFacts:
    state = given.get("state") or None
    if state not in (None, "keep", "nearest", "clear"):
        raise ConfigError(f"the state is one of keep, nearest and clear, not {state!r}")
    partitions = given.get("partitions")
    return set_startpoint(
        job,
        str(given.get("stream", "")),
        _place(given),
        partitions=_numbers(partitions) if partitions else None,
        with_state=state,
        dry_run=dry_run,
    )


def _place(given: Given) -> requests.Startpoint:
    kind, value = given.get("kind"), given.get("value")
    match kind:
        case "oldest":
            return requests.StartpointOldest()
        case "upcoming":
            return requests.StartpointUpcoming()
        case "offset":
            return requests.StartpointSpecific(str(_number(value)))
        case "timestamp":
            return requests.StartpointTimestamp(_number(value))
    raise ConfigError(f"a startpoint is one of oldest, upcoming, offset and timestamp, not {kind!r}")


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ConfigError(f"{value!r} is not a whole number") from None


def _numbers(text: object) -> list[int]:
    return [_number(part.strip()) for part in str(text).split(",")]


def _plan_startpoint(job: FoundJob, given: Given) -> list[str]:
    asked = _startpoint(job, given, dry_run=True)
    if not asked.changes and asked.with_state is None:
        return ["The next start begins where it would anyway.", *asked.notes]
    moves = [
        f"{each.stream} partition {each.partition}: from {each.old_next} to {each.new_next}" for each in asked.changes
    ]
    state = [] if asked.with_state is None else [f"State: {asked.with_state}."]
    begins = [] if asked.checkpoint is None else [f"The start begins with checkpoint {asked.checkpoint}."]
    return ["The next start begins to read elsewhere:", *moves, *state, *begins, *asked.notes]


def _set_startpoint(job: FoundJob, given: Given) -> list[str]:
    asked = _startpoint(job, given, dry_run=False)
    return [f"{len(asked.requests)} written. The next start applies them, and deletes them."]


def _readable(job: FoundJob) -> list[RequestFacts]:
    """The startpoints that a page can delete: `penstock startpoint delete` has the others, too."""
    return [each for each in status(job, wait=False).startpoints if each.status != "unreadable"]


def _plan_delete(job: FoundJob, given: Given) -> list[str]:
    waiting = _readable(job)
    if not waiting:
        raise NotFoundError(f"no startpoint of job {job.paths.root} waits that can be read")
    return ["These startpoints are deleted:", *(f"{each.place}: {each.text} (`{each.uuid}`)" for each in waiting)]


def _delete(job: FoundJob, given: Given) -> list[str]:
    places = dict.fromkeys((each.stream, each.partition, each.task) for each in _readable(job))
    deleted = [
        delete_startpoints(job, stream, partitions=None if partition is None else [partition], task=task).deleted
        for stream, partition, task in places
    ]
    return [f"{sum(map(len, deleted))} deleted."]


ACTIONS: Mapping[str, Action] = {
    "stop": Action(_plan_stop, _stop),
    "drain": Action(_plan_drain, _drain),
    "cancel drain": Action(_plan_cancel, _cancel),
    "startpoint": Action(_plan_startpoint, _set_startpoint),
    "delete startpoints": Action(_plan_delete, _delete),
}


ENTRIES = 50
"""The most entries of an answer."""
_HEX = "0x"
LETTERS = 20
LINES = 300
_LONGEST = 2_000
"""Characters of a value that are shown."""
_reading = threading.BoundedSemaphore(2)
"""Each restores a store to a scratch folder, so few may do so at once."""

Query = Mapping[str, str]


def entries(job: FoundJob, given: Query) -> Document:
    """The entry of a key, or the first entries from a key on, as of the last checkpoint."""
    store, key, first = given.get("store", ""), given.get("key", ""), given.get("from", "")
    with _turn(), open_version(job, store) as opened:
        serdes = store_serdes(opened.record, store)
        keys, values = Texts("key", serdes.key_name, serdes.key), Texts("value", serdes.value_name, serdes.value)
        if key:
            found = opened.get(parse_hex(key) if key.startswith(_HEX) else keys.parse(key))
        else:
            found = list(islice(opened.scan(keys.parse_bound(first) if first else None, None), ENTRIES))
        rows = [(_cut(keys.full(e.key)), _cut(values.full(e.value)), str(e.task)) for e in found]
        troubles = [each.trouble.partition("; ")[0] for each in (keys, values) if each.trouble is not None]
        note = " ".join([*troubles, *([] if rows else ["There is no such entry."])])
        title = f"{store}, as of checkpoint {opened.record.id}"
        return page_table(FactTable.of(title, "key, value, task>", rows, note))


def letters(job: FoundJob, given: Query) -> Document:
    """The last messages of the dead-letter stream, with their headers."""
    name = _dead_letter_stream(job)
    stream = SystemStream.parse(name)
    found = FoundStream(stream, open_system(job.config.system(stream.system)), ConfigSources())
    with closing(StreamTail(found)) as tail:
        messages = list(tail.messages(count=LETTERS))
    rows = [
        (
            utc_text(each.timestamp),
            f"{each.partition}: {each.offset}",
            _cut(_text(each.key)),
            _cut(_text(each.value)),
            _cut("\n".join(f"{name}: {_text(value)}" for name, value in each.headers)),
        )
        for each in reversed(messages)
    ]
    return page_table(FactTable.of(f"Dead letters in {name}", "at, offset, key, value, headers", rows))


def _dead_letter_stream(job: FoundJob) -> str:
    if (named := job.config.task.dead_letter_stream) is not None:
        return str(named)
    shown = graph(job)
    edges = () if shown is None else shown.edges
    streams = [each.target for each in edges if isinstance(each.target, str) and not each.channel]
    if not streams:
        raise NotFoundError("the job has no dead-letter stream: see `task.dead.letter.stream`")
    return streams[0]


def logs(job: FoundJob, given: Query) -> Document:
    """The last lines of the containers' logs on this host."""
    lines = [f"{line.container}  {line.text}" for line in container_logs(job, LINES)]
    return {"title": "Logs of containers on the dashboard's host", "text": "\n".join(lines)}


def sizes(job: FoundJob, given: Query) -> Document:
    """The objects of the stores, and those that no checkpoint needs."""
    facts = state_versions(job)
    rows = [
        (each.store, each.backend or "", each.kind, f"{each.count:,}", size_text(each.size_bytes))
        for each in summed(facts.objects)
    ]
    unused = collect_garbage(job, dry_run=True)
    counts = {name: len(each.names) for name, each in unused.backends.items()} | {
        "pushed tables": len(unused.tables),
        "outbox": len(unused.outbox),
    }
    left = [f"{counted(count, 'object')} of {name}" for name, count in counts.items() if count]
    note = f"No checkpoint needs {', '.join(left)}: a run deletes them." if left else "All objects are needed."
    return page_table(FactTable.of("Objects", "store, backend, kind, objects>, size>", rows, note))


LOOKUPS = {"entries": entries, "letters": letters, "logs": logs, "sizes": sizes}


@contextmanager
def _turn() -> Iterator[None]:
    if not _reading.acquire(timeout=10):
        raise RetryableError("others read the state at this moment: try again in a moment")
    try:
        yield
    finally:
        _reading.release()


def _text(data: bytes | None) -> str:
    if data is None:
        return ""
    text = printable(data)
    return f"0x{data.hex()}" if text is None else text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
