"""A disk that is full says so, where, and what to do about it: below a local stream and below a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
