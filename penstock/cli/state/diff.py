"""`penstock state diff`. What it needs of Arrow and RocksDB is imported when it is called."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.admin.jobs import open_job
from penstock.admin.state.version import FORMS, version_text
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_facts, print_table
from penstock.cli.state.options import SHOWN, AppReference, BackendName, Limit, StoreName

if TYPE_CHECKING:
    from penstock.cli.state.texts import Texts
    from penstock.state.reading.diff import Difference

_CHANGES = ("added", "removed", "changed")


def diff_versions(
    job: JobName,
    store: StoreName,
    before: Annotated[
        str, typer.Option("--from", metavar="V", help=f"The first version: {FORMS}.", show_default=False)
    ],
    after: Annotated[str, typer.Option("--to", metavar="V", help="The second version.")] = "latest",
    limit: Limit = None,
    backend: BackendName = None,
    app: AppReference = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show which keys of a store were added, removed or changed between two retained versions, in key order.

    --json prints one object a line: `change`, `key`, `task`, and the values `from` and `to` where they exist. The last
    line has the counts of all changes, whatever the limit.
    """
    from penstock.admin.state.reading import open_diff
    from penstock.cli.state.reading import print_line, restoring, say_more, say_troubles, store_texts

    with (
        open_job(job, config, assignments) as found,
        restoring() as view,
        open_diff(found, store, before, after, backend=backend, watcher=view) as opened,
    ):
        old, new = opened.before, opened.after
        keys, values = store_texts(new, store, app)
        differences = _Counted(opened.differences)
        view.stop()
        if as_json:
            for each in differences.up_to(limit):
                print_line(_fields(each, keys, values))
            print_line({"counts": differences.counts(), "from": str(old.id), "to": str(new.id)})
        else:
            shown = SHOWN if limit is None else limit
            title = f"Store {store} of {found.paths.root}, {version_text(old)} to {version_text(new)}"
            rows = [_row(each, keys, values) for each in differences.up_to(shown)]
            print_table(title, ("change", "key", "from", "to", "task"), rows, right="task")
            counts = differences.counts()
            print_facts([(change, f"{count:,}") for change, count in counts.items()])
            if sum(counts.values()) > shown:
                say_more(shown)
        say_troubles(keys, values)


class _Counted:
    """Differences, of which the first ones are shown and all are counted."""

    def __init__(self, differences: Iterator[Difference]) -> None:
        self._differences = differences
        self._counts = dict.fromkeys(_CHANGES, 0)

    def up_to(self, limit: int | None) -> Iterator[Difference]:
        return islice(self._iterate(), limit)

    def counts(self) -> dict[str, int]:
        """Of all of them. Those that are left are passed over, so nothing follows this call."""
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


def _row(each: Difference, keys: Texts, values: Texts) -> tuple[object, ...]:
    before, after = (None if value is None else values.short(value) for value in (each.before, each.after))
    return (each.change, keys.short(each.key), before, after, each.task)
