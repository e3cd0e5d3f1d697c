"""Too few file descriptors are not damage: what is refused for want of one is whole, and is found whole afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.base.files import explain
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.task_versions import build_versions
from penstock.config.load import load_config
from penstock.errors import ConfigError, CorruptError, PenstockError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.state import restore
from penstock.state.backends.base import RestoreProgress, StateBackendFactory
from penstock.state.backends.blob import BlobFactory
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from penstock.state.backends.changelog_stream import ChangelogStreamFactory
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.reading.comparison import verify
from penstock.state.reading.reader import StateReader
from penstock.state.restore import LocalCopies
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from penstock.testing.state_backend_harness import BackendHarness
from tests.support.processes.descriptors import descriptors_left

BACKENDS: dict[str, Callable[[], StateBackendFactory]] = {
    "changelog-files": ChangelogFilesFactory,
    "blob": BlobFactory,
    "changelog-stream": ChangelogStreamFactory,
}
LEFT = range(24)
"""From none at all to enough for everything."""
CHANGES = {b"%05d" % n: b"x" * 200 for n in range(2000)}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "_RESTORE", replace(restore._RESTORE, pause_s=0.001))


def outcomes(work: Callable[[], object], left: range = LEFT) -> Iterator[object]:
    """The result of the work with so few descriptors, or the error it raises."""
    for count in left:
        with descriptors_left(count):
            try:
                found = work()
            except PenstockError as error:
                found = error
        yield found


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restore_without_descriptors_may_be_tried_again_and_notes_no_damage(tmp_path: Path, backend: str) -> None:
    harness = BackendHarness(
        BACKENDS[backend](),
        open_store(f"file://{tmp_path}/root"),
        tmp_path / "engines",
        systems={"local": LocalSystem("local", str(tmp_path / "streams"))},
        overrides={"state.snapshot.interval.commits": 1},
    )
    task = harness.backup(1)
    for part in range(4):
        first = task.commit_changes({"first": dict(list(CHANGES.items())[part * 500 : part * 500 + 500])})
        task.finish()
    markers = task.commit(first={b"last": b"1"})
    expected = {**CHANGES, b"last": b"1"}
    notes: list[str] = []

    def once() -> object:
        progress = RestoreProgress(Event(), lambda _: None, notes.append)
        with closing(harness.restore_engine(markers["first"], "first", progress)) as engine:
            return dict(engine.scan(None, None))

    with_os_errors = list(_with_os_errors(once))
    assert with_os_errors[-1] == expected
    refused = [found for found in with_os_errors if found != expected]
    assert refused
    assert all(isinstance(found, RetryableError | OSError) for found in refused), refused
    assert notes == [], "no snapshot was found to be damaged"
    with suppress(Exception):  # RocksDB may name an error of its background work again
        task.close()
    again = harness.backup(2, markers)
    assert again.content() == expected
    assert again.commit(first={b"more": b"2"})["first"], "and the history is continued, not begun from the ground"
    assert first["first"] != markers["first"]
    harness.close()


def _with_os_errors(work: Callable[[], object]) -> Iterator[object]:
    """As `outcomes`. A restore manager may leave an OSError as it is: whoever calls it explains that."""

    def either() -> object:
        try:
            return work()
        except OSError as error:
            return error

    return outcomes(either)


def job(folder: Path) -> tuple[StateReader, CheckpointRecord]:
    """A checkpoint with one store, held by two backends."""
    objects, paths = open_store(f"file://{folder}/root"), JobPaths("contract", "1")
    settings = {
        "job.name": "contract",
        "stores.restore.factories": "blob,changelog-files",
        "job.root": f"{folder}/root",
    }
    markers = {}
    for name in ("blob", "changelog-files"):
        harness = BackendHarness(BACKENDS[name](), objects, folder / name)
        markers[name] = {"first": harness.backup(1).commit(first=CHANGES)["first"]}
        harness.close()
    checkpoint_id = CheckpointId(1, 0)
    record = CheckpointRecord(
        id=checkpoint_id,
        parent=None,
        epoch=1,
        run_id="run",
        writer="w",
        task_count=1,
        batch=1,
        batch_time_ms=1,
        stores={"first": "op key value"},
        next_offsets={},
        tasks={0: build_versions(checkpoint_id, {}, markers, (2,))},
    )
    return StateReader(load_config(overrides=settings, environ={}), paths, objects, {}), record


def test_a_store_that_no_backend_can_restore_for_now_is_not_beyond_repair(tmp_path: Path) -> None:
    reader, record = job(tmp_path)

    def once() -> object:
        with reader.open(record, "first", 0) as engine:
            return dict(engine.scan(None, None))

    with reader:
        found = list(outcomes(once))
    assert found[-1] == CHANGES
    refused = [each for each in found if each != CHANGES]
    assert refused
    assert all(isinstance(each, RetryableError) for each in refused), refused


def test_verify_says_nothing_about_what_it_could_not_read(tmp_path: Path) -> None:
    reader, record = job(tmp_path)
    with reader:
        found = list(outcomes(lambda: verify(reader, record, ["first"], lambda *_: None)))
    refused = [each for each in found if isinstance(each, PenstockError)]
    assert refused
    assert all(isinstance(each, RetryableError) for each in refused), refused
    assert isinstance(found[-1], list), "in the end there were enough"
    for verdicts in found:  # parallel reads decide how many descriptors are enough: a refusal may follow an answer
        if isinstance(verdicts, list):
            assert verdicts[0].agrees


def test_a_local_copy_that_cannot_be_read_for_now_is_not_damaged(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path)
    engine = RocksDbEngine(tmp_path / "live", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    engine.apply(CHANGES)
    engine.copy_to(tmp_path / "made")
    engine.close()
    copies.publish(CheckpointId(1, 0), {"blob": "m"}, tmp_path / "made")
    for count in LEFT:
        with descriptors_left(count):
            try:
                assert copies.take(CheckpointId(1, 0), {"blob": "m"}, tmp_path / f"taken-{count}")
            except CorruptError:
                raise
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017
    assert dict(RocksDbEngine(tmp_path / f"taken-{count}", block_cache_bytes=1, write_buffer_bytes=1).scan(None, None))


def test_a_local_stream_that_cannot_be_read_for_now_is_not_damaged(tmp_path: Path) -> None:
    system = LocalSystem("local", str(tmp_path))
    ssp = SystemStreamPartition("local", "s", 0)
    system.admin().create_stream("s", 1)
    with closing(system.writer(None)) as writer:
        writer.append(ssp, [(1, b"k", b"v")])

    def once() -> object:
        with closing(system.reader()) as reader, closing(system.admin()) as admin:
            return admin.offsets("s")[0].upcoming, list(reader.read(OffsetRange(ssp, 0, 1), 10))

    found = list(outcomes(once))
    assert found[-1] == (1, [[(0, 1, b"k", b"v")]])
    refused = [each for each in found if isinstance(each, PenstockError)]
    assert refused
    assert all(isinstance(each, RetryableError) for each in refused), refused


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (errno.EMFILE, RetryableError, "ulimit -n"),
        (errno.ENFILE, RetryableError, "ulimit -n"),
        (errno.ENOSPC, RetryableError, "`some.key`"),
        (errno.EIO, RetryableError, "disk"),
        (errno.EACCES, ConfigError, "`some.key`"),
        (errno.EROFS, ConfigError, "`some.key`"),
    ],
)
def test_errors_of_the_system_say_what_to_do(code: int, kind: type[PenstockError], said: str) -> None:
    error = explain(OSError(code, os.strerror(code)), "`x` cannot be read", "some.key")
    assert type(error) is kind
    assert os.strerror(code) in str(error)
    assert said in str(error)
