"""Commands on a stopped job's exactly-once output: they show it, and delete what no record needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import NotFoundError
from penstock.outbox.wing import OUTBOX, OutboxObject, OutboxSection, OutputPart, UnpublishedObjects
from penstock.system.base import Progress, WriterIdentity
from tests.support.stores.stopped_job import PATHS, StoppedJob, saved
from tests.support.tools.cli import call, call_json

PUBLISHER = "flights-1-uid"
OUT = [SystemStreamPartition("local", "done", n) for n in range(2)]
KEYS = {
    "left": PATHS.outbox("1-1-0-0"),
    "own": PATHS.outbox("1-2-0-0"),
    "published": PATHS.outbox("1-0-0-0"),
    "never named": PATHS.outbox("1-9-0-0"),
}


def named(key: str, **parts: OutputPart) -> OutboxObject:
    by_partition = {OUT[int(name.removeprefix("p"))]: part for name, part in parts.items()}
    return OutboxObject(KEYS[key], 0, 1000, "0" * 64, by_partition)


def naming(number: int, outbox: OutboxSection) -> CheckpointRecord:
    return saved(number, stores={}, markers={}).having(OUTBOX, outbox)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoppedJob:
    """Its last record names two chunks for partition 0, and what the record before it had left for both."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    made = StoppedJob(tmp_path)
    made.system.admin().create_stream("done", 2)
    for key in KEYS.values():
        made.objects.put_if_absent(key, b"x")
    left, own = named("left", p0=OutputPart(2, 30), p1=OutputPart(1, 5)), named("own", p0=OutputPart(2, 12))
    made.run(
        naming(1, OutboxSection((left,), (), ("local",), PUBLISHER)),
        naming(2, OutboxSection((own,), (UnpublishedObjects(1, (left,)),), ("local",), PUBLISHER)),
    )
    return made


def publish(job: StoppedJob, **marks: Progress) -> None:
    writer = job.system.writer(WriterIdentity(PUBLISHER, 1))
    with writer.begin() as transaction:
        for partition, mark in marks.items():
            transaction.mark(OUT[int(partition.removeprefix("p"))], mark)
    writer.close()


def rows(text: str, *names: str) -> dict[str, str]:
    found = (line.strip().split("  ") for line in text.splitlines())
    return {line[0]: line[-1].strip() for line in found if line[0] in names}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("marks", "published", "said"),
    [
        ({}, 0, "47 to local.done, 0 of them are published: the next start makes sure of it"),
        ({"p0": Progress(1, 0)}, 0, "47 to local.done, 0 of them are published: the next start makes sure of it"),
        ({"p0": Progress(1, 1)}, 30, "47 to local.done, 30 of them are published: the next start makes sure of it"),
        ({"p0": Progress(2, 0), "p1": Progress(1, 0)}, 35, "47 to local.done, 35 of them are published: the next"),
        ({"p0": Progress(2, 1), "p1": Progress(1, 0)}, 47, "47 to local.done: published"),
    ],
)
def test_what_is_published(job: StoppedJob, marks: dict[str, Progress], published: int, said: str) -> None:
    publish(job, **marks)
    assert said in rows(call("status", "flights")[0], "exactly once")["exactly once"]
    assert call_json("status", "flights")["outbox"]["published"] == published
    shown = call_json("checkpoint", "show", "flights")
    assert shown["outbox"] == [{"output": "local.done", "messages": 47, "published": published}]
    assert (shown["outboxObjects"], shown["outboxBytes"], shown["keepers"]) == (2, 2000, ["local"])
    lines, _, sections = call("checkpoint", "show", "flights")[0].partition("Sections of wings")
    assert rows(sections, "outbox") == {"outbox": str(shown["sections"][0]["bytes"])}
    text = rows(lines, "outbox", "progress is kept in")
    assert text == {"outbox": "2 objects, 2.0 KB", "progress is kept in": "local"}


def test_a_system_that_cannot_be_asked(job: StoppedJob) -> None:
    job.system.admin().delete_stream("done")
    said = rows(call("status", "flights")[0], "exactly once")["exactly once"]
    assert said == "47 to local.done (how many are published is not known): the next start makes sure of it"
    assert call_json("checkpoint", "show", "flights")["outbox"][0]["published"] is None


def test_rows_for_a_query_are_published_with_their_record(job: StoppedJob) -> None:
    """Nothing more is to be done for its DataFrames; other outputs are shown as ever."""
    named_rows = OutboxObject(
        PATHS.outbox("2-1-0-0"), 0, 1000, "0" * 64, {SystemStreamPartition("spark", "rows", 0): OutputPart(1, 8)}
    )
    job.run(naming(3, OutboxSection((named_rows,), (), ("spark",), PUBLISHER)))
    assert rows(call("status", "flights")[0], "exactly once")["exactly once"] == "8 to spark.rows: published"


def test_garbage_is_what_the_last_record_does_not_leave(job: StoppedJob) -> None:
    """An output that is already published makes no difference: its objects go after the next record."""
    publish(job, p0=Progress(2, 1), p1=Progress(1, 0))
    collected: Any = call_json("state", "gc", "flights")
    assert sorted(collected["outbox"]) == sorted([KEYS["published"], KEYS["never named"]])
    assert [job.objects.get(KEYS[each]) for each in ("left", "own")] == [b"x", b"x"]
    for each in ("published", "never named"):
        with pytest.raises(NotFoundError):
            job.objects.get(KEYS[each])
