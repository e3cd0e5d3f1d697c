"""Disks that are full, files that cannot be written, and processes that are killed below a file store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.objects.file import FileObjectStore

MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && exec "$3" -c "$4" "$2"'


def on_a_small_disk(folder: Path, size: str, code: str) -> str:
    """Run the code with a file system of this size mounted at the folder, which is its argument."""
    folder.mkdir()
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh"]
    try:
        subprocess.run(
            [*namespace, size, str(folder), sys.executable, "pass"], check=True, capture_output=True, timeout=60
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system of its own can be mounted here: {error}")
    command = [*namespace, size, str(folder), sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


STREAM = """
import sys
import penstock as ps
from penstock.system.local import LocalSystem

system = LocalSystem("local", sys.argv[1])
admin = system.admin()
admin.create_stream("out", 2)
full, other = (ps.SystemStreamPartition("local", "out", number) for number in (0, 1))
writer = system.writer(None)
try:
    while True:
        writer.append(full, [(0, b"key", b"v" * 1000)] * 3)
except ps.RetryableError as error:
    print(error)
try:
    writer.append(other, [(0, b"key", b"value")])
except ps.RetryableError as error:
    print(error)
"""


def test_a_full_disk_under_an_output_is_called_that_in_every_partition(tmp_path: Path) -> None:
    found = on_a_small_disk(tmp_path / "disk", "1m", STREAM).splitlines()
    assert [f"no space is left for `{tmp_path}/disk/out/{number}.db`" in found[number] for number in (0, 1)] == [
        True,
        True,
    ]


STORE = """
import os, sys
from pathlib import Path
from penstock.config.load import load_config
from penstock.errors import RetryableError
from penstock.state.engines.open import open_engine

settings = load_config(overrides={"job.name": "j"}).store("s")
engine = open_engine(settings, Path(sys.argv[1]) / "engine")
step = engine.load if "load" in CALL else engine.apply
try:
    for number in range(1000):
        step({b"%08d-%d" % (key, number): os.urandom(200) for key in range(2000)})
except RetryableError as error:
    print(error)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("call", ["apply", "load"])
def test_a_full_disk_under_a_store_names_the_place_and_its_key(tmp_path: Path, call: str) -> None:
    found = on_a_small_disk(tmp_path / "disk", "4m", f"CALL = '{call}'\n{STORE}")
    assert f"RocksDB cannot write `{tmp_path}/disk/engine`: " in found
    assert "No space left on device" in found
    assert "`job.logged.store.base.dir`" in found


TIMEOUT_S = 60.0

WRITER = """
import hashlib, sys
from penstock.objects.file import FileObjectStore
store = FileObjectStore(sys.argv[1])
body = b"x" * 300_000
for number in range(10**9):
    data = hashlib.sha256(body).digest() + body
    assert store.put_if_absent(f"d/{number:09d}", data)
    print(number, flush=True)
"""

LIMITED = """
import resource, sys
from penstock.errors import RetryableError
from penstock.objects.file import FileObjectStore
store = FileObjectStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
store.put_if_absent("small", b"1")
try:
    store.put_if_absent("large", b"1" * 20_000)
except RetryableError as error:
    print(error)
"""


@pytest.mark.few(3)
@pytest.mark.parametrize("after", [0, 1, 3, 6, 10, 15])
def test_kill_during_put_leaves_absent_or_whole(tmp_path: Path, after: int) -> None:
    """Killed at an arbitrary moment: what was acknowledged is there, the next is absent or whole, no leftover stays."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    acknowledged = -1
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged == after:
            writer.kill()
    writer.wait(TIMEOUT_S)
    writer.stdout.close()
    assert acknowledged >= after
    store = FileObjectStore(tmp_path)
    keys = store.list("d")
    assert len(keys) in (acknowledged + 1, acknowledged + 2)
    body = b"x" * 300_000
    assert all(len(store.get(key)) == 32 + len(body) and store.get(key).endswith(body) for key in keys)
    assert sorted(os.listdir(tmp_path / "d")) == [key.removeprefix("d/") for key in keys]
    assert store.put_if_absent(f"d/{len(keys):09d}", b"the next writer goes on")


@contextmanager
def mounted(path: Path, options: str) -> Iterator[None]:
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True, check=False)
    if mount.returncode != 0:
        pytest.skip("this user may not mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path, "size=256k"):
        store = FileObjectStore(tmp_path)
        assert store.put_if_absent("kept", b"1" * 100_000)
        _, tag = store.get_with_tag("kept")
        with pytest.raises(RetryableError, match=r"No space left.*Free space"):
            store.put_if_absent("d/big", bytes(400_000))
        with pytest.raises(RetryableError, match=r"No space left.*Free space"):
            store.put_if_match("kept", bytes(400_000), tag)
        with pytest.raises(NotFoundError):
            store.get("d/big")
        assert store.get("kept") == b"1" * 100_000
        assert store.list("") == ["kept"]
        assert store.put_if_absent("d/big", b"2" * 100_000), "the failed puts left nothing behind"


def test_read_only_file_system(tmp_path: Path) -> None:
    with mounted(tmp_path, "size=256k"):
        store = FileObjectStore(tmp_path)
        store.put_if_absent("d/k", b"1")
        _, tag = store.get_with_tag("d/k")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        for write in (
            lambda: store.put_if_absent("d/new", b"2"),
            lambda: FileObjectStore(tmp_path).put_if_absent("e/new", b"2"),
            lambda: store.put_if_match("d/k", b"2", tag),
            lambda: store.delete("d/k"),
        ):
            with pytest.raises(ConfigError, match=r"Read-only file system.*job\.root") as caught:
                write()
            assert str(tmp_path) in str(caught.value)
        assert store.list("") == ["d/k"]
        assert store.get("d/k") == b"1"


def test_file_size_limit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert "File too large" in done.stdout
    assert str(tmp_path / "large") in done.stdout
    store = FileObjectStore(tmp_path)
    assert store.list("") == ["small"]
    assert os.listdir(tmp_path) == ["small"]
