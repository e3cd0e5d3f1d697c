"""Damaged, missing and foreign files of a Spark query's state: each is told by its name, none is read over."""

from __future__ import annotations

import io
import json
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from xxhash import xxh32_intdigest

from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError, PenstockError
from penstock.objects.open import open_store
from penstock.spark.state_import.checkpoint import (
    RestoreSteps,
    SparkCheckpoint,
    StatePartitionFiles,
    Version,
    plan_rebuild,
)
from penstock.spark.state_import.files import parse_type, plain_chunks, read_schema, type_text
from penstock.spark.state_import.reader import (
    PartitionEngine,
    RecordKind,
    SparkState,
    open_state,
    read_changelog,
    read_head,
)
from tests.support.stores.spark_state import GOLDEN, read_plain

PUT, DELETE, MERGE, RANGE, END = b"\x01", b"\x10", b"\x11", b"\x20", b"\x00"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a golden checkpoint that a test may damage."""

    def copy(case: str) -> Path:
        return Path(shutil.copytree(GOLDEN / case / "checkpoint", tmp_path / case))

    return copy


def opened(path: Path, variable: str | None = None, *, batch: int | None = None, store: str = "default") -> SparkState:
    return open_state(SparkCheckpoint(open_store(str(path)), str(path)), 0, store, variable, batch)


def read(path: Path, variable: str | None = None) -> list[str]:
    return read_plain(opened(path, variable), path.parent / "scratch")


def only(paths: Iterable[Path]) -> Path:
    (path,) = paths
    return path


def zstd(plain: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(plain)
    return bytes(sink.getvalue())


def field(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


# Changelogs.


@pytest.mark.parametrize(
    ("data", "seed", "digest"),
    [(b"", 0, 0x02CC5D05), (b"abc", 0, 0x32D153FF), (b"Nobody inspects the spammish repetition", 0, 0xE2293B2F)],
)
def test_xxhash32(data: bytes, seed: int, digest: int) -> None:
    assert xxh32_intdigest(data, seed) == digest


@pytest.mark.parametrize("case", ["agg-lz4", "join-lz4-ids", "tws-lz4", "tws-zstd-ids", "window-zstd"])
def test_a_changelog_cut_anywhere_is_noticed(case: str) -> None:
    data = min((GOLDEN / case).rglob("*.changelog")).read_bytes()
    assert list(read_changelog(data, "x"))
    for size in range(len(data)):
        with pytest.raises(CorruptError, match="`x`"):
            list(read_changelog(data[:size], "x"))


def test_a_changed_byte_of_an_lz4_changelog_is_noticed() -> None:
    data = min((GOLDEN / "agg-lz4").rglob("*.changelog")).read_bytes()
    whole = list(read_changelog(data, "x"))
    for at in range(len(data)):
        try:
            found = list(read_changelog(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "x"))
        except CorruptError:
            continue
        assert found == whole, at  # the level in the token, and the unused checksum of the end, mean nothing


def test_records_of_version_2() -> None:
    body = b"".join((b"\x00\x02v2", PUT, field(b"k"), field(b"v"), DELETE, field(b"d"), b"\xff\xff\xff\xff"))
    body += MERGE + field(b"m") + field(b"1") + RANGE + field(b"a") + field(b"b") + END
    assert list(read_changelog(zstd(body), "x")) == [
        (RecordKind.PUT, b"k", b"v"),
        (RecordKind.DELETE, b"d", b""),
        (RecordKind.MERGE, b"m", b"1"),
        (RecordKind.DELETE_RANGE, b"a", b"b"),
    ]
    with pytest.raises(CorruptError, match="continue after their end"):
        list(read_changelog(zstd(body + b"\x00"), "x"))
    with pytest.raises(CorruptError, match="unknown type 99"):
        list(read_changelog(zstd(b"\x00\x02v2\x63"), "x"))


def test_empty_keys_and_values() -> None:
    body = field(b"") + field(b"") + field(b"k") + b"\xff\xff\xff\xff" + b"\xff\xff\xff\xff"
    assert list(read_changelog(zstd(body), "x")) == [(RecordKind.PUT, b"", b""), (RecordKind.DELETE, b"k", b"")]


def test_a_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(IncompatibleError, match="has version 5"):
        read_head(zstd(b"\x00\x02v5"), "x")


@pytest.mark.parametrize(("magic", "codec"), [(b"\x82SNAPPY\x00", "snappy"), (b"ZV\x01", "lzf")])
def test_another_codec_is_named(magic: bytes, codec: str) -> None:
    with pytest.raises(IncompatibleError, match=codec):
        list(plain_chunks(magic + bytes(20), "x"))


def test_replay_of_merges_and_ranges(tmp_path: Path) -> None:
    engine = PartitionEngine(tmp_path / "db")
    engine.apply({b"a1": b"1", b"a2": b"2", b"b": b"3", b"m": b"x"})
    body = b"".join(
        (
            *(b"\x00\x02v2", MERGE, field(b"m"), field(b"y"), MERGE, field(b"m"), field(b"z")),
            *(PUT, field(b"a3"), field(b"3"), RANGE, field(b"a"), field(b"b"), PUT, field(b"a1"), field(b"new")),
            *(DELETE, field(b"b"), b"\xff\xff\xff\xff", MERGE, field(b"b"), field(b"after"), END),
        )
    )
    engine.replay(zstd(body), "x")
    assert dict(engine.scan(None, None)) == {b"a1": b"new", b"b": b"after", b"m": b"xyz"}
    engine.close()


# Which files make up a version.


FOLDER = "state/0/0"


def files(*names: str) -> StatePartitionFiles:
    return StatePartitionFiles.of(FOLDER, names)


def no_lineage(version: Version) -> dict[int, str]:
    raise AssertionError(f"the lineage of {version} is not needed")


def test_the_newest_snapshot_and_what_follows() -> None:
    found = files("1.changelog", "2.changelog", "2.zip", "3.changelog", "4.changelog", "4.zip", ".5.zip.x.tmp")
    assert plan_rebuild(found, Version(4), no_lineage) == RestoreSteps(Version(4), ())
    assert plan_rebuild(found, Version(3), no_lineage) == RestoreSteps(Version(2), (Version(3),))
    assert plan_rebuild(found, Version(1), no_lineage) == RestoreSteps(None, (Version(1),))


def test_a_gap_is_named() -> None:
    found = files("2.zip", "4.changelog", "3_a-b.changelog", ".3.changelog.crc")
    with pytest.raises(NotFoundError, match=r"`state/0/0/3\.changelog` is missing"):
        plan_rebuild(found, Version(4), no_lineage)


def test_the_lineage_decides_between_two_attempts() -> None:
    names = ("1_a.changelog", "1_b.zip", "2_c.changelog", "2_d.changelog", "3_e.changelog")
    lineages = {Version(3, "e"): {2: "c", 1: "a"}, Version(1, "a"): {}}
    plan = plan_rebuild(files(*names), Version(3, "e"), lineages.__getitem__)
    assert plan == RestoreSteps(None, (Version(1, "a"), Version(2, "c"), Version(3, "e")))


def test_a_lineage_with_a_gap_is_damage() -> None:
    with pytest.raises(CorruptError, match="does not say which version 1"):
        plan_rebuild(files("2_c.changelog"), Version(2, "c"), lambda _: {})


def test_ids_that_began_in_the_middle() -> None:
    plan = plan_rebuild(files("1.changelog", "2.zip", "3_c.changelog"), Version(3, "c"), lambda _: {})
    assert plan == RestoreSteps(Version(2), (Version(3, "c"),))


# Damage in real state.


def test_a_missing_changelog(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("window-zstd")
    (path / "state/0/0/4.changelog").unlink()
    with pytest.raises(NotFoundError, match=r"`state/0/0/4\.changelog` is missing"):
        opened(path).check()
    assert read_plain(opened(path, batch=2), path.parent / "scratch")


def test_a_last_partition_without_files(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("agg-lz4")
    query = SparkCheckpoint(open_store(str(path)), str(path))
    query.check_last_partition(query.operator(0, 4))
    shutil.rmtree(path / "state/0/1")
    with pytest.raises(NotFoundError, match=r"`state/0/1` of .* has no files"):
        query.check_last_partition(query.operator(0, 4))
    with pytest.raises(NotFoundError, match=r"`state/0/1/5\.changelog` is missing"):
        opened(path).check()


def test_a_missing_sst_file(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("window-zstd")
    only(path.rglob("*.sst")).unlink()
    with pytest.raises(NotFoundError, match=r"\.sst` is missing, which snapshot `state/0/0/2\.zip` needs"):
        read(path)
    assert not (path.parent / "scratch").exists()


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_sst_file(checkpoint: Callable[[str], Path], how: str) -> None:
    path = checkpoint("window-zstd")
    sst = only(path.rglob("*.sst"))
    data = sst.read_bytes()
    sst.write_bytes(data[:-1] if how == "cut" else data[:20] + bytes([data[20] ^ 1]) + data[21:])
    with pytest.raises(CorruptError, match=r"bytes, snapshot" if how == "cut" else "cannot be read: "):
        read(path)


def test_a_scan_that_meets_a_damaged_block_in_the_middle(tmp_path: Path) -> None:
    """RocksDB's iterator just ends there."""
    engine = PartitionEngine(tmp_path / "db")
    engine.apply({b"%08d" % number: b"v" * 100 for number in range(5000)})
    engine._db.flush()
    engine.close()
    sst = only((tmp_path / "db").glob("*.sst"))
    data = sst.read_bytes()
    middle = len(data) // 2
    sst.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    engine = PartitionEngine(tmp_path / "db")
    with pytest.raises(CorruptError, match=r"cannot be read: .*Corruption"):
        list(engine.scan(None, None))
    assert len(list(engine.scan(b"00000010", b"00000020"))) == 10
    engine.close()


def test_a_damaged_zip(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("window-zstd")
    archive = path / "state/0/0/2.zip"
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(CorruptError, match=r"snapshot `state/0/0/2\.zip` is damaged"):
        read(path)


def test_a_snapshot_that_leads_elsewhere(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("window-zstd")
    archive = path / "state/0/0/2.zip"
    data = io.BytesIO(archive.read_bytes())
    with zipfile.ZipFile(data, "a") as appended:
        appended.writestr("../outside", b"x")
    archive.write_bytes(data.getvalue())
    with pytest.raises(CorruptError, match="outside"):
        read(path)
    assert not (path.parent / "outside").exists()


def test_a_variable_without_any_snapshot(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("tws-lz4")
    for snapshot in path.rglob("*.zip"):
        snapshot.unlink()
    with pytest.raises(IncompatibleError, match="which number variable `total` has"):
        read(path, "total")


def test_a_row_that_does_not_fit_its_schema(checkpoint: Callable[[str], Path]) -> None:
    decode = opened(checkpoint("agg-lz4")).decoder()
    entries = opened(GOLDEN / "agg-lz4" / "checkpoint").entries(0, Path(checkpoint("join-lz4-ids")) / "scratch")
    key, value = next(entries)
    entries.close()
    decode(key, value)
    for bad_key, bad_value in [
        (key[1:], value),
        (key[:-8], value),
        (key, value[:-8]),
        (key, b""),
        (b"\x01" + key[1:], value),
    ]:
        with pytest.raises(CorruptError, match="operator 0"):
            decode(bad_key, bad_value)


# What was asked for is not there, or of a kind that is not read.


def test_what_is_there_is_named(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("tws-lz4")
    with pytest.raises(ConfigError, match="`kept`, `last`, `seen`, `total`"):
        opened(path)
    with pytest.raises(NotFoundError, match="no state variable `nope`; it has: `kept`"):
        opened(path, "nope")
    with pytest.raises(NotFoundError, match="has no store `nope`; it has: `default`"):
        opened(path, store="nope")
    with pytest.raises(NotFoundError, match=r"batch 5 is not committed .* is 4"):
        opened(path, "total", batch=5)
    with pytest.raises(NotFoundError, match="no stateful operator 1; it has: 0"):
        open_state(SparkCheckpoint(open_store(str(path)), "x"), 1, "default", None, None)
    with pytest.raises(NotFoundError, match="not the checkpointLocation"):
        opened(path / "state", "total")
    with pytest.raises(NotFoundError, match="no state variables"):
        opened(checkpoint("agg-lz4"), "total")
    with pytest.raises(IncompatibleError, match="RangeKeyScan"):
        opened(path, "$ttl_kept").decoder()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("providerClass", "org.x.HDFSBackedStateStoreProvider", "HDFSBacked"),
        ("encodingFormat", "avro", "avro"),
        ("rowChecksum.enabled", "true", "row checksums"),
    ],
)
def test_state_of_another_kind_is_refused(
    checkpoint: Callable[[str], Path], key: str, value: str, message: str
) -> None:
    path = checkpoint("agg-lz4")
    lines = (path / "offsets/4").read_text().split("\n")
    facts = json.loads(lines[1])
    facts["conf"]["spark.sql.streaming.stateStore." + key] = value
    (path / "offsets/4").write_text("\n".join([lines[0], json.dumps(facts), *lines[2:]]))
    with pytest.raises(IncompatibleError, match=message):
        opened(path)


@pytest.mark.parametrize("name", ["commits/4", "offsets/4", "state/0/_metadata/metadata", "state/0/0/_metadata/schema"])
def test_damaged_metadata(checkpoint: Callable[[str], Path], name: str) -> None:
    path = checkpoint("agg-lz4")
    damaged = path / name
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    with pytest.raises(PenstockError, match=name.split("/")[-1]):
        opened(path).check()


def test_without_metadata_of_the_operator_the_folders_count(checkpoint: Callable[[str], Path]) -> None:
    """As before Spark 4."""
    path = checkpoint("join-lz4-ids")
    before = read_plain(opened(path, store="left-keyToNumValues"), path.parent / "scratch")
    shutil.rmtree(path / "state/0/_metadata")
    assert read_plain(opened(path, store="left-keyToNumValues"), path.parent / "scratch") == before


# Schemas.


def test_columns_of_one_name_are_told_apart() -> None:
    fields = [{"name": name, "type": "long"} for name in ("sum", "sum_2", "sum", "sum", "b")]
    parsed = parse_type({"type": "struct", "fields": fields})
    assert type_text(parsed) == "struct<sum:bigint,sum_2:bigint,sum_3:bigint,sum_4:bigint,b:bigint>"


def test_schema_of_version_1() -> None:
    def utf(text: str) -> bytes:
        return struct.pack(">H", len(text)) + text.encode()

    row = json.dumps({"type": "struct", "fields": [{"name": "a", "type": "decimal(10,2)"}]})
    data = utf("v1") + utf(row) + utf(row)
    assert type_text(read_schema(data, "x")["default"].value) == "struct<a:decimal(10,2)>"
    for size in range(len(data)):
        with pytest.raises(CorruptError, match="`x` is damaged"):
            read_schema(data[:size], "x")
    with pytest.raises(IncompatibleError, match="v9"):
        read_schema(utf("v9"), "x")
