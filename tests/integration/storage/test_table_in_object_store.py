"""A Delta table in an object store as an input."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.errors import NotFoundError
from penstock.system.lake import log
from penstock.system.lake.system import DeltaSystem
from tests.support.stores.s3 import S3, s3_server
from tests.support.tools.fixtures import fixture_of
from tests.support.world.lake_tables import TableJob, all_rows

pytestmark = pytest.mark.slow


s3 = fixture_of(s3_server, using=(), scope="module")


def test_each_row_once(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_SHARE", 0)
    options = {**s3.environment, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    folder = s3.fresh_url()
    url = f"{folder}/orders"

    def append(*numbers: int) -> None:
        rows = pa.table({"n": numbers, "day": [f"d {n % 2}" for n in numbers]})
        write_deltalake(url, rows, mode="append", partition_by=["day"], storage_options=options)

    given = {"folder": folder, "partitions": "2", **{f"storage.{name}": text for name, text in options.items()}}
    system = replace(DeltaSystem.configured("lake", given), poll_ms=0)
    with pytest.raises(NotFoundError, match="there is no Delta table"):
        system.admin().offsets("orders")
    for n in range(0, 12, 3):
        append(n, n + 1, n + 2)
    expected = [{"n": n, "day": f"d {n % 2}"} for n in range(14)]
    with closing(TableJob(system)) as job:
        assert job.finish() == expected[:12]
        DeltaTable(url, storage_options=options).optimize.compact()
        append(12, 13)
        job.restart()
        assert job.finish() == expected
    DeltaTable(url, storage_options=options).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(NotFoundError, match="is gone"):
        all_rows(system)
    assert all_rows(system, "snapshot") == expected
