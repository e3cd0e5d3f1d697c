"""The local system when processes are killed, disks are full and files are damaged."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError, CorruptError, PenstockTimeoutError, RetryableError
from penstock.system.base import PartitionOffsets, RawMessage, WriterIdentity
from penstock.system.local import LocalSystem
from penstock.testing.system_contract import STREAM, append, messages, read, read_compacted, records, ssp

DEADLINE_SECONDS = 60

APPENDER = textwrap.dedent(
    """
    import random, sys
    from penstock.system.base import WriterIdentity
    from penstock.system.local import LocalSystem
    from penstock.testing.system_contract import ssp

    root, name, batches, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    system, rng = LocalSystem("local", root), random.Random(seed)
    writer = system.writer(WriterIdentity(name, 1))
    for batch in range(batches):
        size = rng.choice((1, 3, 200, 3000))
        rows = [(batch, name.encode(), b"%d of %d, batch %d" % (i, size, batch)) for i in range(size)]
        first = writer.append(ssp(system, 0), rows)
        sys.stdout.write(f"{batch} {first} {size}\\n")  # in one piece, whatever the environment says of buffers
        sys.stdout.flush()
    """
)


COMPACTOR = textwrap.dedent(
    """
    import random, sys
    from penstock.system.base import OffsetRange, WriterIdentity
    from penstock.system.local import LocalSystem
    from penstock.testing.system_contract import ssp

    root, epoch, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    system, rng = LocalSystem("local", root), random.Random(epoch)
    identity, here = WriterIdentity("writer", epoch), ssp(LocalSystem("local", root), 0)
    writer, admin = system.writer(identity), system.admin()
    while True:
        rows = [(0, b"%d" % (n % 997), None if n % 7 == 0 else b"%d" % n) for n in range(number, number + 500)]
        end = writer.append(here, rows) + 500
        number += 500
        sys.stdout.write(f"{end}\\n")
        sys.stdout.flush()
        admin.compact(OffsetRange(here, 0, rng.randrange(end - 200, end + 1)), identity)
    """
)


@pytest.fixture
def system(tmp_path: Path) -> LocalSystem:
    made = LocalSystem("local", str(tmp_path / "root"))
    made.admin().create_stream(STREAM, 2)
    return made


def start_appender(system: LocalSystem, name: str, batches: int, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", APPENDER, system.root, name, str(batches), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def stored(system: LocalSystem) -> list[RawMessage]:
    ends = system.admin().offsets(STREAM)[0]
    assert ends.oldest == 0
    return read(system, ssp(system, 0), 0, ends.upcoming)


def batches_of(found: list[RawMessage]) -> list[tuple[bytes, int, int, int]]:
    """(writer, batch, first offset, size) of every batch; asserts that each is whole and in one piece."""
    whole = []
    at = 0
    while at < len(found):
        offset, batch, name, value, *_ = found[at]
        size = int((value or b"").split()[2].rstrip(b","))
        expected = [(offset + i, batch, name, b"%d of %d, batch %d" % (i, size, batch)) for i in range(size)]
        assert found[at : at + size] == expected
        whole.append((name or b"", batch, offset, size))
        at += size
    return whole


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_an_appender_is_killed_at_random_moments(system: LocalSystem, kills: int) -> None:
    """Every acknowledged batch is there, where it was said to be; of the one in flight all or nothing."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    acknowledged: list[tuple[bytes, int, int, int]] = []
    for run in range(kills):
        name = f"run-{run}"
        process = start_appender(system, name, 1_000_000, rng.randrange(1 << 32))
        assert process.stdout is not None
        kill_after = rng.randrange(1, 40)
        for line in process.stdout:
            batch, first, size = map(int, line.split())
            acknowledged.append((name.encode(), batch, first, size))
            if batch == kill_after:  # it goes on meanwhile, so this hits any step of a later append
                process.send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL
        process.stdout.close()
        found = batches_of(stored(system))
        assert set(acknowledged) <= set(found)
        unacknowledged = [batch for batch in found if batch not in acknowledged]
        assert len(unacknowledged) <= run + 1  # the last one of each run may be stored and its reply lost
    assert append(system, ssp(system, 0), records(0, 1)) == len(stored(system)) - 1


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_a_compactor_is_killed_at_random_moments(system: LocalSystem, kills: int) -> None:
    """Wherever a compaction was killed, the messages that remain give the same content as all that were written."""
    rng = random.Random(11)
    dropped_some = False
    for epoch in range(1, kills + 1):
        upcoming = system.admin().offsets(STREAM)[0].upcoming
        command = [sys.executable, "-c", COMPACTOR, system.root, str(epoch), str(upcoming)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        kill_after = upcoming + 500 * rng.randrange(1, 30)
        for line in process.stdout:
            if int(line) == kill_after:  # it goes on to compact meanwhile
                process.send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL
        process.stdout.close()
        upcoming = system.admin().offsets(STREAM)[0].upcoming
        found = read_compacted(system, ssp(system, 0), 0, upcoming)
        expected = {b"%d" % (n % 997): None if n % 7 == 0 else b"%d" % n for n in range(upcoming)}
        content = {key: value for _, _, key, value, *_ in found}
        assert {k: v for k, v in content.items() if v is not None} == {
            k: v for k, v in expected.items() if v is not None
        }
        dropped_some = dropped_some or len(found) < upcoming
    assert dropped_some


def test_two_processes_append_at_once(system: LocalSystem) -> None:
    processes = [start_appender(system, name, 60, seed) for seed, name in enumerate(("left", "right"))]
    replies = {}
    for name, process in zip((b"left", b"right"), processes, strict=True):
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0
        replies[name] = [tuple(map(int, line.split())) for line in output.splitlines()]
    found = batches_of(stored(system))
    for name in (b"left", b"right"):
        assert [batch[1:] for batch in found if batch[0] == name] == replies[name]
        assert len(replies[name]) == 60


def test_a_locked_partition_times_out_by_name(system: LocalSystem) -> None:
    append(system, ssp(system, 0), records(0, 2))
    hasty = LocalSystem("local", system.root, busy_timeout_ms=50)
    path = f"{system.root}/{STREAM}/0.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(PenstockTimeoutError, match=rf"{path}.*50 ms \(`busy_timeout_ms`"):
        append(hasty, ssp(hasty, 0), records(2, 1))
    with pytest.raises(PenstockTimeoutError):
        hasty.admin().fence(STREAM, WriterIdentity("job", 1))
    assert read(hasty, ssp(hasty, 0), 0, 2) == messages(0, 2)
    other.execute("ROLLBACK")
    other.close()
    assert append(hasty, ssp(hasty, 0), records(2, 1)) == 2


# -- full disks --


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "none", folder]).returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    system = LocalSystem("local", str(small_disk / "root"))
    system.admin().create_stream(STREAM, 1)
    writer, big = system.writer(None), [(0, None, os.urandom(100_000))]
    appended: list[int] = []
    with pytest.raises(RetryableError, match=r"0\.db"):
        appended.extend(writer.append(ssp(system, 0), big) for _ in range(100))
    upcoming = len(appended)
    assert appended == list(range(upcoming))
    assert upcoming > 3
    assert system.admin().offsets(STREAM)[0] == PartitionOffsets(0, upcoming)
    with pytest.raises(RetryableError, match=r"0\.db"):
        writer.append(ssp(system, 0), big * 20)
    assert len(read(system, ssp(system, 0), 0, upcoming)) == upcoming
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    assert writer.append(ssp(system, 0), big) == upcoming
    writer.close()


def test_creating_a_stream_on_a_full_disk(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(bytes(4 << 20))
    system = LocalSystem("local", str(small_disk / "root"))
    with pytest.raises(RetryableError):
        system.admin().create_stream(STREAM, 4)
    filler.unlink()
    assert not list((small_disk / "root").iterdir())
    assert system.admin().create_stream(STREAM, 4) is True


def test_a_file_that_may_not_grow(system: LocalSystem) -> None:
    """A full disk as every user can have it: the process may not write beyond a file size."""
    append(system, ssp(system, 0), records(0, 3))
    script = textwrap.dedent(
        """
        import sys
        from penstock.errors import RetryableError
        from penstock.system.local import LocalSystem
        from penstock.testing.system_contract import append, records, ssp
        system = LocalSystem("local", sys.argv[1])
        try:
            append(system, ssp(system, 0), records(3, 50_000))
        except RetryableError as error:
            print(error)
        print(append(system, ssp(system, 0), records(3, 1)))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, system.root],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18)),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    failure, offset = done.stdout.splitlines()
    assert "0.db` could not be read or written" in failure
    assert offset == "3"
    assert read(system, ssp(system, 0), 0, 4) == messages(0, 4)


def test_an_unwritable_folder() -> None:
    """A user who may only read is told so; run by root, the test becomes another user in a child."""
    root = Path(tempfile.mkdtemp())
    system = LocalSystem("local", str(root))
    system.admin().create_stream(STREAM, 1)
    append(system, ssp(system, 0), records(0, 1))
    folder = root / STREAM
    for path in (*folder.iterdir(), folder, root):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def in_child() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        with pytest.raises(ConfigError, match=r"0\.db.* writable by this user"):
            append(system, ssp(system, 0), records(1, 1))
        with pytest.raises(ConfigError, match=r"could not be created: .*Permission denied"):
            system.admin().create_stream("another", 1)

    try:
        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start()
        child.join(DEADLINE_SECONDS)
        assert child.exitcode == 0
    finally:
        for path in (root, folder):
            path.chmod(0o755)
        shutil.rmtree(root)


# -- damaged files --


def damage_garbage(path: Path) -> None:
    path.write_bytes(b"this is no database at all " * 1000)


def damage_emptied(path: Path) -> None:
    path.write_bytes(b"")


def damage_removed(path: Path) -> None:
    path.unlink()


def damage_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def damage_swapped(path: Path) -> None:
    shutil.copy(path.with_name("1.db"), path)


def damage_no_tables(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE other (a)")
    connection.close()


@pytest.mark.parametrize(
    "damage", [damage_garbage, damage_emptied, damage_removed, damage_folder, damage_swapped, damage_no_tables]
)
def test_a_damaged_partition_is_named(system: LocalSystem, damage: object) -> None:
    append(system, ssp(system, 0), records(0, 3))
    append(system, ssp(system, 1), records(0, 3))
    path = Path(system.root, STREAM, "0.db")
    assert callable(damage)
    damage(path)
    for step in (
        lambda: system.admin().offsets(STREAM),
        lambda: read(system, ssp(system, 0), 0, 3),
        lambda: append(system, ssp(system, 0), records(3, 1)),
        lambda: system.admin().fence(STREAM, WriterIdentity("job", 1)),
        lambda: system.admin().offset_at_time(ssp(system, 0), 0),
    ):
        with pytest.raises(CorruptError, match=str(path)):
            step()
    assert read(system, ssp(system, 1), 0, 3) == messages(0, 3)


def test_damaged_pages_are_not_read_as_messages(system: LocalSystem) -> None:
    append(system, ssp(system, 0), records(0, 5000))
    path = Path(system.root, STREAM, "0.db")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=str(path)):
        read(system, ssp(system, 0), 0, 5000)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1, "partitions": "2", "uid": "x"}'])
def test_a_damaged_description_is_named(system: LocalSystem, text: str) -> None:
    path = Path(system.root, STREAM, "stream.json")
    path.write_text(text)
    with pytest.raises(CorruptError, match=str(path)):
        system.admin().offsets(STREAM)


def test_what_a_killed_creation_left_is_no_stream(system: LocalSystem) -> None:
    left = Path(system.root, ".creating-0123")
    shutil.copytree(Path(system.root, STREAM), left)
    with pytest.raises(ConfigError):
        system.admin().partition_count(left.name)
    assert system.admin().create_stream("another", 1) is True
