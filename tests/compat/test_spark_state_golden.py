"""State that real Spark queries wrote, read here, against what Spark itself read of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.objects.open import open_store
from penstock.spark.state_import.checkpoint import SparkCheckpoint, plan_rebuild
from penstock.spark.state_import.files import plain_chunks
from penstock.spark.state_import.reader import RecordKind, SparkState, open_state, read_changelog, read_head
from penstock.state.engines.engine import decode_records, encode_records
from tests.support.stores.spark_state import GOLDEN, read_plain

CASES = sorted(path.name for path in GOLDEN.iterdir())


def opened(case: str, what: str, batch: int | None) -> SparkState:
    """The store, or the state variable, of that name."""
    store, variable = ("default", what) if case.startswith("tws") else (what, None)
    url = str(GOLDEN / case / "checkpoint")
    return open_state(SparkCheckpoint(open_store(url), url), 0, store, variable, batch)


def expected(case: str) -> dict[str, dict[str, list[str]]]:
    found: dict[str, Any] = json.loads((GOLDEN / case / "expected.json").read_text())
    return found


def test_all_the_formats_there_are() -> None:
    assert CASES == ["agg-lz4", "join-lz4-ids", "tws-lz4", "tws-zstd-ids", "window-zstd"]


@pytest.mark.few(7)
@pytest.mark.parametrize(("case", "what"), [(case, what) for case in CASES for what in expected(case)])
def test_every_batch_is_read_as_spark_reads_it(case: str, what: str, tmp_path: Path) -> None:
    batches = expected(case)[what]
    assert len(batches) == 5
    for batch, entries in batches.items():
        assert read_plain(opened(case, what, int(batch)), tmp_path / "scratch") == entries
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("case", CASES)
def test_the_last_batch_is_a_snapshot_and_changelogs(case: str) -> None:
    """The golden files are no easy ones."""
    what = next(iter(expected(case)))
    state = opened(case, what, None)
    assert state.batch == 4
    files = state.checkpoint.partition(0, 0, state.store.name)
    wanted = state.checkpoint.version(0, 4, files, 0)
    assert (wanted.checkpoint_id is not None) == case.endswith("ids")
    plan = plan_rebuild(files, wanted, lambda version: state._lineage(files, version))
    assert plan.snapshot is not None
    assert len(plan.changelogs) >= 2


def test_python_types(tmp_path: Path) -> None:
    state = opened("agg-lz4", "default", 0)
    entries = state.entries(0, tmp_path / "scratch")
    key, value = state.decoder()(*next(entries))
    entries.close()
    assert not (tmp_path / "scratch").exists()
    assert isinstance(value, dict)
    assert key == {"k": "key-0"}
    kinds = {name: type(each).__name__ for name, each in value.items()}
    assert kinds == {
        "count": "int",
        "sum": "float",
        "count_2": "int",
        "max": "bool",
        "max_2": "int",
        "max_3": "int",
        "max_4": "int",
        "max_5": "int",
        "max_6": "float",
        "max_7": "str",
        "max_8": "bytes",
        "max_9": "date",
        "max_10": "datetime",
        "max_11": "datetime",
        "max_12": "Decimal",
        "max_13": "Decimal",
        "max_14": "list",
        "max_15": "list",
        "max_16": "dict",
        "max_17": "int",
        "first": "dict",
        "valueSet": "bool",
    }
    assert value["first"] == {"x": 0, "y": None}
    assert value["max_10"].utcoffset().total_seconds() == 0
    assert value["max_11"].tzinfo is None


def untyped_changelogs() -> list[str]:
    """Spark's changelog files of version 1, whose records are those of a delta."""
    found = GOLDEN.glob("*/checkpoint/state/0/0/*.changelog")
    return sorted(str(path.relative_to(GOLDEN)) for path in found if read_head(path.read_bytes(), "x").version == 1)


def test_there_are_changelogs_of_version_1_in_both_codecs() -> None:
    cases = {name.partition("/")[0] for name in untyped_changelogs()}
    assert cases == {"agg-lz4", "window-zstd"}


@pytest.mark.parametrize("name", untyped_changelogs())
def test_sparks_changelog_is_read_and_written_byte_for_byte(name: str) -> None:
    """The records of a delta are Spark's: what Spark wrote is read as a delta's records are, and written again it is
    what Spark wrote."""
    path = GOLDEN / name
    records = b"".join(plain_chunks(path.read_bytes(), name))
    changes = decode_records(records, name)
    assert changes
    assert encode_records(changes) == records
    spark = {
        key: value if kind is RecordKind.PUT else None for kind, key, value in read_changelog(path.read_bytes(), name)
    }
    assert changes == spark
    assert list(changes) == list(spark)


def test_a_deltas_records_are_a_changelog_that_sparks_reader_takes() -> None:
    changes: dict[bytes, bytes | None] = {b"a": b"1", b"": b"", b"gone": None, b"\xff" * 300: b"x" * 70_000}
    data = pa.Codec("zstd").compress(encode_records(changes), asbytes=True)
    read = list(read_changelog(data, "own"))
    assert {key: value if kind is RecordKind.PUT else None for kind, key, value in read} == changes
