"""`penstock state get`, `scan` and `diff`. They import Arrow and RocksDB when they are called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.admin.jobs import VERSION_FORMS, version_text
from penstock.api.serdes.base import end_of_prefix
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import JobName, JsonCall
from penstock.cli.shared.output import show
from penstock.errors import ConfigError, NotFoundError
from penstock.facts import Facts, FactTable

if TYPE_CHECKING:
    from penstock.admin.state.serdes import Texts
    from penstock.state.reading.comparison import Difference
    from penstock.state.reading.reader import VersionEntry

_CHANGES = ("added", "removed", "changed")

Version = Annotated[
    str, typer.Option("--version", "--checkpoint", metavar="V", help=f"The retained version: {VERSION_FORMS}.")
]
SHOWN = 20
"""Rows of a table if no limit is given."""

StoreName = Annotated[str, typer.Argument(metavar="STORE", help="The store.")]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="Restore from this backend; by default the first that can."),
]
AppReference = Annotated[
    str | None,
    typer.Option("--app", metavar="APP", help="Take custom serdes from this `module:object` or `file.py:object`."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", metavar="N", min=0, help=f"At most this many entries; by default {SHOWN} in a table, all as JSON."
    ),
]
AsHex = Annotated[bool, typer.Option("--hex", help="Keys are bytes in hexadecimal.")]


TaskNumber = Annotated[int | None, typer.Option("--task", metavar="N", min=0, help="Only this task.")]


def get_value(
    job: JobName,
    store: StoreName,
    key: Annotated[str, typer.Argument(metavar="KEY")],
    version: Version = "latest",
    as_hex: AsHex = False,
    task: TaskNumber = None,
    backend: BackendName = None,
    app: AppReference = None,
    *,
    call: JsonCall,
) -> None:
    """Print the value of a key as of a retained version. The job may be running; it is not disturbed.

    If the store is kept by the key of its messages, the task that owns the key is searched first. The exit status is 1
    if no task has the key.

    Args:
        key: The key, as the store's serde reads it. Put `--` before a key that begins with `-`.
    """
    from penstock.admin.state.reading import open_version
    from penstock.admin.state.serdes import parse_hex
    from penstock.cli.shared.reading import print_line, restoring, say_troubles, store_texts

    with (
        call.open(job) as found,
        restoring() as view,
        open_version(found, store, version, backend=backend, watcher=view) as opened,
    ):
        keys, values = store_texts(opened.record, store, app)
        wanted = parse_hex(key) if as_hex else keys.parse(key)
        entries = opened.get(wanted, task)
        view.stop()
        if not entries:
            where = "any task" if task is None else f"task {task}"
            raise NotFoundError(
                f"there is no key `{key}` in store `{store}` of {where} at checkpoint {version_text(opened.record)}"
            )
        for entry in entries:
            backend = opened.backend(entry.task)
            if call.as_json:
                origin = {"checkpoint": str(opened.record.id), "backend": backend}
                print_line(_entry_fields(entry, keys, values) | origin)
            else:
                say(f"task {entry.task}, checkpoint {version_text(opened.record)}, restored from {backend}")
                sys.stdout.write(values.full(entry.value) + "\n")
        say_troubles(*([keys, values] if call.as_json else [values]))


def scan_entries(
    job: JobName,
    store: StoreName,
    version: Version = "latest",
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="TEXT")] = None,
    from_key: Annotated[str | None, typer.Option("--from-key", metavar="KEY")] = None,
    to_key: Annotated[str | None, typer.Option("--to-key", metavar="KEY")] = None,
    as_hex: AsHex = False,
    task: TaskNumber = None,
    limit: Limit = None,
    backend: BackendName = None,
    app: AppReference = None,
    *,
    call: JsonCall,
) -> None:
    """List the entries of a store as of a retained version, across all tasks, in the order of the keys' bytes.

    --json prints one object a line: `key`, `value`, `task`; `keyHex` and `valueHex` for bytes that have no text.

    Args:
        prefix: Only keys with this prefix: of their text, of their JSON, or the first fields of a tuple.
        from_key: Only keys from this one on.
        to_key: Only keys before this one.
    """
    from penstock.admin.state.reading import open_version
    from penstock.cli.shared.reading import print_line, restoring, say_troubles, store_texts

    with (
        call.open(job) as found,
        restoring() as view,
        open_version(found, store, version, backend=backend, watcher=view) as opened,
    ):
        keys, values = store_texts(opened.record, store, app)
        start, end = _bounds(keys, prefix, from_key, to_key, as_hex=as_hex)
        entries = opened.scan(start, end, None if task is None else [task])
        view.stop()
        if call.as_json:
            for entry in islice(entries, limit):
                print_line(_entry_fields(entry, keys, values))
        else:
            title = f"Store {store} of {found.paths.root} at {version_text(opened.record)}"
            _print_entries(title, entries, SHOWN if limit is None else limit, keys, values)
        say_troubles(keys, values)


def _bounds(
    keys: Texts, prefix: str | None, from_key: str | None, to_key: str | None, *, as_hex: bool
) -> tuple[bytes | None, bytes | None]:
    """The first key and the end (exclusive) of the keys within the prefix and both bounds."""
    from penstock.admin.state.serdes import parse_hex

    parse, parse_prefix = (parse_hex, parse_hex) if as_hex else (keys.parse_bound, keys.parse_prefix)
    first = None if prefix is None else parse_prefix(prefix)
    start = None if from_key is None else parse(from_key)
    end = None if to_key is None else parse(to_key)
    if start is not None and end is not None and start > end:
        raise ConfigError(f"--from-key `{from_key}` comes after --to-key `{to_key}` in the order of the keys' bytes")
    starts = [first, start]
    ends = [end_of_prefix(first) if first else None, end]
    return (
        max((each for each in starts if each is not None), default=None),
        min((each for each in ends if each is not None), default=None),
    )


def _entry_fields(entry: VersionEntry, keys: Texts, values: Texts) -> dict[str, Any]:
    return {**keys.field("key", entry.key), **values.field("value", entry.value), "task": entry.task}


def _print_entries(title: str, entries: Iterator[VersionEntry], limit: int, keys: Texts, values: Texts) -> None:
    from penstock.cli.shared.reading import say_more

    shown = ((keys.short(each.key), values.short(each.value), each.task) for each in islice(entries, limit))
    show(Facts({}, (FactTable.of(title, "key, value, task>", shown),)))
    if next(entries, None) is not None:
        say_more(limit)


def diff_versions(
    job: JobName,
    store: StoreName,
    before: Annotated[str, typer.Option("--from", metavar="V", help=f"The first version: {VERSION_FORMS}.")],
    after: Annotated[str, typer.Option("--to", metavar="V")] = "latest",
    limit: Limit = None,
    backend: BackendName = None,
    app: AppReference = None,
    *,
    call: JsonCall,
) -> None:
    """Show which keys of a store were added, removed or changed between two retained versions, in key order.

    --json prints one object a line: `change`, `key`, `task`, and the values `from` and `to` where they exist. The last
    line has the counts of all changes, whatever the limit.

    Args:
        after: The second version.
    """
    from penstock.admin.state.reading import open_diff
    from penstock.cli.shared.reading import print_line, restoring, say_more, say_troubles, store_texts

    with (
        call.open(job) as found,
        restoring() as view,
        open_diff(found, store, before, after, backend=backend, watcher=view) as opened,
    ):
        old, new = opened.before, opened.after
        keys, values = store_texts(new, store, app)
        differences = _Counted(opened.differences)
        view.stop()
        if call.as_json:
            for each in differences.up_to(limit):
                print_line(_fields(each, keys, values))
            print_line({"counts": differences.counts(), "from": str(old.id), "to": str(new.id)})
        else:
            shown = SHOWN if limit is None else limit
            title = f"Store {store} of {found.paths.root}, {version_text(old)} to {version_text(new)}"
            rows = [_difference_row(each, keys, values) for each in differences.up_to(shown)]
            show(Facts({}, (FactTable.of(title, "change, key, from, to, task>", rows),)))
            counts = differences.counts()
            show(Facts({change: f"{count:,}" for change, count in counts.items()}))
            if sum(counts.values()) > shown:
                say_more(shown)
        say_troubles(keys, values)


class _Counted:
    """Counts all differences, and yields the first ones."""

    def __init__(self, differences: Iterator[Difference]) -> None:
        self._differences = differences
        self._counts = dict.fromkeys(_CHANGES, 0)

    def up_to(self, limit: int | None) -> Iterator[Difference]:
        return islice(self._iterate(), limit)

    def counts(self) -> dict[str, int]:
        """Count all differences. Consumes the rest, so nothing follows this call."""
        for _ in self._iterate():
            pass
        return self._counts

    def _iterate(self) -> Iterator[Difference]:
        for each in self._differences:
            self._counts[each.change] += 1
            yield each


def _fields(each: Difference, keys: Texts, values: Texts) -> dict[str, Any]:
    return {
        "change": each.change,
        **keys.field("key", each.key),
        "task": each.task,
        **({} if each.before is None else values.field("from", each.before)),
        **({} if each.after is None else values.field("to", each.after)),
    }


def _difference_row(each: Difference, keys: Texts, values: Texts) -> tuple[object, ...]:
    before, after = (None if value is None else values.short(value) for value in (each.before, each.after))
    return (each.change, keys.short(each.key), before, after, each.task)
