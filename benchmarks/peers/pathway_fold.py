"""The keyed fold in Pathway: a reader of JSON lines, a group-by on all threads, and snapshots of its input.

The argument is an object of JSON: `files` (a folder), `events`, `threads`, `work` (a folder), `result` (a file), and
`totals` (a file) where all changes of the totals are to be written.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from counting import parameters


def main() -> None:
    """Run until all events are counted."""
    given = parameters()
    os.environ["PATHWAY_THREADS"] = str(given["threads"])
    import pathway as pw

    class Event(pw.Schema):
        key: str
        amount: float

    events = pw.io.jsonlines.read(given["files"], schema=Event, mode="streaming", autocommit_duration_ms=1000)
    totals = events.groupby(events.key).reduce(
        events.key, count=pw.reducers.count(), sum=pw.reducers.sum(events.amount)
    )
    changes: dict[str, tuple[int, float]] = {}
    began = time.time()

    def finish(result: dict[str, Any]) -> None:
        Path(given["result"]).write_text(json.dumps(result), encoding="utf-8")
        os._exit(0)

    def change(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:  # the changes of one time come in any order
            changes[row["key"]] = row["count"], row["sum"]

    def time_end(time: int) -> None:
        if sum(count for count, _ in changes.values()) == given["events"]:
            finish({"totals": changes})

    def progress(key: Any, row: dict[str, Any], is_addition: bool, **of: Any) -> None:
        if is_addition and row["rows"] == given["events"]:
            finish({"began": began, "ended": time.time()})

    if given["totals"]:
        pw.io.subscribe(totals, on_change=change, on_time_end=time_end)
    else:
        pw.io.null.write(totals)
        pw.io.subscribe(events.reduce(rows=pw.reducers.count()), on_change=progress)
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        persistence_config=pw.persistence.Config(
            pw.persistence.Backend.filesystem(f"{given['work']}/snapshots"), snapshot_interval_ms=1000
        ),
    )


if __name__ == "__main__":
    main()
