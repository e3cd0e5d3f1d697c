"""The writers of a worker: open from batch to batch, and not more files than they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import FencedError
from penstock.runtime.stage.sink import OutputWriters
from penstock.system.base import RawRecord, WriterIdentity
from penstock.system.local import LocalSystem
from tests.support.processes.descriptors import open_under

RECORD: RawRecord = (1, b"key", b"value")


def ssp(partition: int, stream: str = "out") -> SystemStreamPartition:
    return SystemStreamPartition("local", stream, partition)


def test_files_stay_open_between_batches_and_are_few(tmp_path: Path) -> None:
    system = LocalSystem("local", str(tmp_path))
    admin = system.admin()
    admin.create_stream("out", 100)
    writers = OutputWriters({"local": system}, WriterIdentity("job", 1))
    writers.append({ssp(partition): [RECORD] for partition in range(2)})
    first = open_under(tmp_path)
    assert len(first) == 2
    writers.append({ssp(partition): [RECORD] for partition in range(2)})
    assert open_under(tmp_path) == first
    writers.append({ssp(partition): [RECORD] for partition in range(100)})
    assert len(open_under(tmp_path)) <= 64
    writers.close()
    assert open_under(tmp_path) == set()
    assert [ends.upcoming for ends in admin.offsets("out").values()] == [3, 3] + 98 * [1]
    admin.close()


def test_a_kept_writer_is_fenced_and_follows_a_stream_that_was_replaced(tmp_path: Path) -> None:
    system = LocalSystem("local", str(tmp_path))
    admin = system.admin()
    admin.create_stream("out", 2)
    writers = OutputWriters({"local": system}, WriterIdentity("job", 1))
    both = {ssp(0): [RECORD], ssp(1): [RECORD]}
    writers.append(both)
    (tmp_path / "out").rename(tmp_path / "aside")
    admin.create_stream("out", 2)
    writers.append(both)
    assert [ends.upcoming for ends in admin.offsets("out").values()] == [1, 1]
    admin.fence("out", WriterIdentity("job", 2))
    with pytest.raises(FencedError):
        writers.append(both)
    assert [ends.upcoming for ends in admin.offsets("out").values()] == [1, 1]
    writers.close()
    admin.close()
