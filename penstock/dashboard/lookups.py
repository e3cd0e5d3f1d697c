"""Look-ups of a page: entries of a store, dead letters, logs, and the objects that a collection would delete."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice

from penstock.admin.job.logs import container_logs
from penstock.admin.job.status import graph
from penstock.admin.jobs import FoundJob
from penstock.admin.state.held import collect_garbage, state_versions
from penstock.admin.state.reading import open_version
from penstock.admin.state.serdes import Texts, parse_hex, store_serdes
from penstock.admin.stream.names import ConfigSources, FoundStream
from penstock.admin.stream.tail import StreamTail
from penstock.api.ssp import SystemStream
from penstock.base.wording import counted, printable, size_text, utc_text
from penstock.dashboard.view import Document, page_table
from penstock.errors import NotFoundError, RetryableError
from penstock.facts import FactTable
from penstock.state.backends.registry import summed
from penstock.system.registry import open_system

ENTRIES = 50
"""The most entries of an answer."""
_HEX = "0x"
LETTERS = 20
LINES = 300
_LONGEST = 2_000
"""Characters of a value that are shown."""
_reading = threading.BoundedSemaphore(2)
"""Each restores a store to a scratch folder, so few may do so at once."""

Given = Mapping[str, str]


def entries(job: FoundJob, given: Given) -> Document:
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


def letters(job: FoundJob, given: Given) -> Document:
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


def logs(job: FoundJob, given: Given) -> Document:
    """The last lines of the containers' logs on this host."""
    lines = [f"{line.container}  {line.text}" for line in container_logs(job, LINES)]
    return {"title": "Logs of containers on the dashboard's host", "text": "\n".join(lines)}


def sizes(job: FoundJob, given: Given) -> Document:
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
