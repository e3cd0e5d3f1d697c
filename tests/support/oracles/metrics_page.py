"""docs/metrics.md against what a job exports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

from penstock.metrics.snapshot import CounterValue, GaugeValue, Snapshot, TimerValue

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
Documented: TypeAlias = tuple[str, str, str]
"""Kind of group, name, kind of metric."""
OF_LOSSES: set[Documented] = {("stream", "messages-lost", "gauge"), ("stream", "messages-foreign", "counter")}
"""Only of a job that has lost messages of an input, or left out those of strangers."""
OF_EVENT_TIME: set[Documented] = {
    ("stream", "messages-too-far-ahead", "counter"),
    ("stream", "watermark", "gauge"),
    ("stream", "watermark-delay-ms", "gauge"),
}
"""Only of jobs that use event time."""
OF_OPERATORS: set[Documented] = {
    ("operator", "in-order", "counter"),
    ("operator", "late-dropped", "counter"),
    ("operator", "timers-fired", "counter"),
    ("operator", "panes-fired", "counter"),
    ("operator", "without-partner", "counter"),
    ("operator", "joined-later", "counter"),
    ("operator", "timers-dropped", "counter"),
    ("operator", "busy-ns", "timer"),
}
"""Only of jobs with operators that wait for time, and of operators that took a while."""
OF_TIME_TO_LIVE: set[Documented] = {("store", "expired", "counter")}
"""Only of stores with a time to live."""
OF_PUSHED_TABLES: set[Documented] = {
    ("store", "tables-version", "gauge"),
    ("store", "tables-loading", "gauge"),
    ("store", "tables-loading-percent", "gauge"),
    ("store", "tables-failing", "gauge"),
    ("store", "tables-swaps", "counter"),
    ("store", "tables-load-ns", "timer"),
    ("store", "tables-load-failures", "counter"),
    ("store", "tables-bytes-downloaded", "counter"),
}
"""Only of jobs with pushed tables."""
OF_THE_DIRECT_WAY: set[Documented] = {
    ("job", "batches-direct", "counter"),
    *(("job", f"batches-spark-{reason}", "counter") for reason in ("start", "large", "control", "repeat", "failure")),
}
"""Only of jobs with a latency target."""
OF_STANDBYS: set[Documented] = {
    ("standby", "takeovers", "counter"),
    ("standby", "bytes-restored", "counter"),
    ("standby", "follow-ns", "timer"),
    ("standby", "behind-ms", "gauge"),
}
"""Only of jobs with standbys."""
OF_SIDE_INPUTS: set[Documented] = {
    ("store", "side-inputs-messages", "counter"),
    ("store", "side-inputs-flushes", "counter"),
    ("store", "side-inputs-rebuilds", "counter"),
    ("store", "side-inputs-failures", "counter"),
    ("store", "side-inputs-bootstrap-ns", "timer"),
    ("store", "side-inputs-lag", "gauge"),
    ("store", "side-inputs-catching-up", "gauge"),
    ("store", "side-inputs-failing", "gauge"),
}
"""Only of stores that side inputs fill."""
OF_OUTBOXES: set[Documented] = {
    ("outbox", "bytes", "gauge"),
    ("outbox", "unpublished-messages", "gauge"),
    ("outbox", "published-messages", "counter"),
    ("outbox", "published-bytes", "counter"),
    ("outbox", "publish-ns", "timer"),
}
"""Only of jobs with exactly-once outputs."""
_KINDS: dict[type, str] = {CounterValue: "counter", GaugeValue: "gauge", TimerValue: "timer"}


def documented(page: str) -> list[Documented]:
    """Each row of the reference."""
    found = []
    for section in page.partition("\n## Reference\n")[2].split("\n### ")[1:]:
        group = re.match(r"`([a-z]+)", section)
        assert group is not None, section
        for row in re.findall(r"^\| `.*$", section, re.MULTILINE):
            fields = re.match(r"\| `([^`]+)` \| (counter|gauge|timer) \|", row)
            assert fields is not None, row
            found.append((group[1], fields[1], fields[2]))
    return found


def exported(snapshot: Snapshot) -> set[Documented]:
    """The metrics that a job exports, without the application's own."""
    found = {(key.group.partition(".")[0], key.name, _KINDS[type(value)]) for key, value in snapshot.items()}
    return {each for each in found if each[0] != "user"}


def differences(page: str, found: set[Documented]) -> list[str]:
    """The names that are not on both sides, or twice on the page."""
    rows = documented(page)
    return [
        *(f"{each} is listed twice" for each in sorted({row for row in rows if rows.count(row) > 1})),
        *(f"{each} is not exported" for each in sorted({*rows} - found)),
        *(f"{each} is not documented" for each in sorted(found - {*rows})),
    ]
