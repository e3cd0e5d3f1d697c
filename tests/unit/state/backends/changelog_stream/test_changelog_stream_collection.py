"""The changelog stream backend: what is compacted away, and any history with all of it together."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim
from penstock.checkpoint.task_versions import build_versions
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.state.backends import changelog_partition as partition
from penstock.state.backends.changelog_partition import ChangelogRange
from penstock.state.backends.changelog_stream import needless
from penstock.state.backends.registry import BackendAdmins
from penstock.state.engines.engine import Changes
from penstock.system.base import System, WriterIdentity
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from penstock.testing.state_backend_contract import BackendHarness
from penstock.testing.system_contract import read_compacted
from tests.support.stores.changelog_stream import SSP, STREAM, config, log, make_harness, pairs, random_changes
from tests.support.stores.checkpoints import checkpoint

# -- collecting --


def test_what_is_needless() -> None:
    def marker(generation: int, offset: int | None) -> ChangelogRange:
        return ChangelogRange(SSP, generation, offset)

    def found(retained: list[ChangelogRange], left: list[ChangelogRange], *, in_use: bool) -> tuple[int, int] | None:
        offsets = needless(SSP, retained, left, in_use=in_use)
        return None if offsets is None else (offsets.start, offsets.end)

    assert found([marker(0, 9), marker(0, 5), marker(0, 7)], [], in_use=True) == (0, 6)
    assert found([marker(20, 25), marker(0, 5)], [], in_use=True) == (0, 6)
    assert found([marker(20, 25), marker(20, 31)], [marker(0, 5)], in_use=True) == (20, 26)
    assert found([marker(20, None), marker(20, 31)], [], in_use=True) == (20, 32)
    assert found([marker(20, None), marker(30, None)], [], in_use=True) == (20, 20)
    assert found([], [marker(0, 5), marker(3, 9)], in_use=False) == (10, 10)
    assert found([], [marker(0, 5)], in_use=True) is None
    assert found([], [], in_use=False) is None


def test_a_collection_says_what_goes(harness: BackendHarness, system: System) -> None:
    task = harness.backup(1)
    markers = [task.commit(first={b"k": b"%d" % number, b"gone": None}) for number in range(4)]
    planned = harness.collect(markers[2:], markers[:2], epoch=1, dry_run=True)
    assert planned.names == (f"local.{STREAM}/0 <= offset 5: 5 records",)
    assert len(log(system)) == 8
    assert harness.collect(markers[2:], markers[:2], epoch=1) == planned
    assert pairs(log(system)) == [(b"k", b"2"), (b"k", b"3"), (b"gone", None)]
    assert harness.collect(markers[2:], markers[:2], epoch=1).names == ()
    with pytest.raises(NotFoundError, match="be distinguished"):
        harness.restore(markers[1]["first"])


def test_a_collection_waits_until_much_is_new(harness: BackendHarness, system: System) -> None:
    task = harness.backup(1)
    markers = [task.commit(first={b"%d" % number: b"x" for number in range(10)})]
    dropped: list[str] = []
    for number in range(20):
        markers.append(task.commit(first={b"%d" % (number % 10): b"y"}))
        dropped += harness.collect(markers[-1:], markers[-2:-1], epoch=1).names
    assert [name.rpartition(" <= ")[2] for name in dropped] == [
        "offset 10: 1 record",
        "offset 20: 10 records",
    ]
    markers.append(task.commit(first={b"0": b"z"}))
    assert len(harness.collect(markers[-1:], markers[-2:-1], epoch=1, sweep=True).names) == 1


def test_a_collection_where_the_stream_is_gone(harness: BackendHarness, system: System) -> None:
    gone = ChangelogRange(SystemStreamPartition("local", "gone", 0), 0, 5).serialize()
    other = ChangelogRange(SystemStreamPartition("no-such-system", "gone", 0), 0, 5).serialize()
    beyond = ChangelogRange(SSP, 0, 500).serialize()
    harness.backup(1).commit(first={b"k": b"1"})
    for marker in (gone, other, beyond):
        assert harness.collect([{"first": marker}], [{"first": marker}], epoch=1).names == ()
    assert len(log(system)) == 1


# -- everything together --


@pytest.mark.parametrize("seed", range(40))
def test_any_history_keeps_every_retained_marker(
    objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Epochs that end in the middle of a commit, rewinds to any retained checkpoint, cleared stores, stores that
    another backend restored, and collections. The oracle is a plain dict for each checkpoint."""
    monkeypatch.setattr(partition, "_APPEND_RECORDS", 4)
    monkeypatch.setattr(partition, "_READ_MESSAGES", 3)
    rng = random.Random(seed)
    system = LocalSystem("local", str(tmp_path / "streams")) if seed % 8 == 0 else MemorySystem("local")
    log: list[tuple[dict[str, str], dict[bytes, bytes]]] = []
    with closing(make_harness(objects, tmp_path, system)) as harness:
        for epoch in range(1, 9):
            start, content = (log[-1] if rng.random() < 0.6 else rng.choice(log)) if log else (None, {})
            kind = rng.random()
            if start is None or kind < 0.1:
                task, content = harness.backup(epoch), {}
            elif kind < 0.3:  # restored by another backend, with our marker or without
                known = start if rng.random() < 0.5 else {}
                task = harness.backup(epoch, known, content={"first": content, "second": {}})
            else:
                task = harness.backup(epoch, start)
            assert task.content() == content, f"epoch {epoch}"
            for _ in range(rng.randrange(5)):
                changes: dict[str, Changes] = {"first": random_changes(rng)}
                markers = task.commit_changes(changes, complete=True)
                log.append((markers, task.content()))
                if rng.random() < 0.4:
                    left = [log.pop(rng.randrange(len(log) - 1))[0] for _ in range(rng.randrange(len(log)))]
                    retained = [own for own, _ in log]
                    sweep = rng.random() < 0.3
                    planned = harness.collect(retained, left, epoch=epoch, sweep=sweep, dry_run=True)
                    assert harness.collect(retained, left, epoch=epoch, sweep=sweep) == planned
                for own, expected in log:
                    assert harness.restore(own["first"]) == expected, f"epoch {epoch}"
            if rng.random() < 0.7:
                task.commit_changes({"first": random_changes(rng)}, clean_up=False)  # not in the log
            task.close()


def test_what_a_checkpoint_with_version_1_alone_needs_stays(tmp_path: Path) -> None:
    """A later checkpoint of another generation is in version 2. The first one still restores after a collection."""
    system = LocalSystem("local", str(tmp_path / "streams"))
    objects = open_store(str(tmp_path / "jobs"))
    admins = BackendAdmins(
        config(**{"stores.backup.factories": "changelog-stream"}),
        JobPaths("contract", "1"),
        objects,
        1,
        ["first"],
        {"local": system},
        "uid",
    )
    admins.prepare(1)
    writer = system.writer(WriterIdentity("contract-1/state", 1))
    writer.append(SSP, [(0, b"k%d" % number, b"v") for number in range(10)])
    records = [
        checkpoint_with(number, marker, version)
        for number, marker, version in ((1, ChangelogRange(SSP, 0, 4), 1), (2, ChangelogRange(SSP, 5, 9), 2))
    ]
    admins.collect(1, records, [], sweep=True)
    admins.close()
    assert [key for _, _, key, _, *_ in read_compacted(system, SSP, 0, 5)] == [b"k%d" % number for number in range(5)]


def checkpoint_with(number: int, marker: ChangelogRange, version: int) -> CheckpointRecord:
    values = build_versions(
        CheckpointId(number, 0), {}, {"changelog-stream": {"first": marker.serialize()}}, (version,)
    )
    return replace(
        checkpoint(Claim(1, "run", "w"), number), task_count=1, stores={"first": "layout"}, tasks={0: values}
    )
