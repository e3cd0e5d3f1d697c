"""Tables of a lake as outputs: Delta and Iceberg."""

from __future__ import annotations

import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, FencedError, IncompatibleError, NotFoundError
from penstock.system.base import Progress, RawRecord, WriterIdentity
from penstock.system.contract.writer import WriterMark
from penstock.system.lake.system import LakeSystem
from penstock.system.lake.tables import ConflictError
from penstock.system.rows.schema import RowForm
from tests.support.tools.fixtures import fixture_of
from tests.support.world.lake_world import Kind, LakeWorld, lake_of, rows_of
from tests.support.world.sums_job import TASKS, drain

KINDS: list[Kind] = ["delta", "iceberg"]
PARTITIONS = 3


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def lake(kind: Kind, tmp_path: Path) -> LakeSystem:
    found: LakeSystem = pickle.loads(pickle.dumps(lake_of(kind, tmp_path)))
    found.admin().create_stream("sums", PARTITIONS)
    return found


def ssp(partition: int, stream: str = "sums") -> SystemStreamPartition:
    return SystemStreamPartition("lake", stream, partition)


def records(*totals: int) -> list[RawRecord]:
    return [(0, b"k", orjson.dumps({"word": f"w{total}", "total": total})) for total in totals]


def totals(lake: LakeSystem) -> list[int]:
    return sorted(row["total"] for row in rows_of(lake, "sums"))


def publish(lake: LakeSystem, epoch: int, parts: dict[int, tuple[Progress, list[RawRecord]]]) -> None:
    with lake.writer(WriterIdentity("job-1", epoch)).begin() as transaction:
        for partition, (mark, own) in parts.items():
            transaction.append(ssp(partition), own)
            transaction.mark(ssp(partition), mark)


def test_rows_and_marks_become_valid_together(lake: LakeSystem) -> None:
    publish(lake, 4, {0: (Progress(7, 1), records(1, 2)), 2: (Progress(7, 0), records(3))})
    assert totals(lake) == [1, 2, 3]
    assert rows_of(lake, "sums")[0].keys() == {"word", "total"}
    marks = {ssp(0): Progress(7, 1), ssp(2): Progress(7, 0)}
    assert lake.writer(WriterIdentity("job-1", 4)).progress(map(ssp, range(PARTITIONS))) == marks
    assert lake.admin().progress_of("job-1", map(ssp, range(PARTITIONS))) == marks
    assert lake.admin().progress_of("job-2", map(ssp, range(PARTITIONS))) == {}
    with pytest.raises(IncompatibleError):
        publish(lake, 4, {1: (Progress(1, 0), records(8)), 0: (Progress(7, 1), records(9))})
    assert totals(lake) == [1, 2, 3]


def test_an_older_epoch_writes_nothing_any_more(lake: LakeSystem) -> None:
    old = lake.writer(WriterIdentity("job-1", 4))
    with old.begin() as transaction:
        transaction.append(ssp(0), records(1))
    lake.admin().fence("sums", WriterIdentity("job-1", 5))
    for partition in range(PARTITIONS):
        with pytest.raises(FencedError, match="epoch 5 has taken over"):
            old.append(ssp(partition), records(9))
    with pytest.raises(FencedError):
        old.progress([ssp(1)])
    publish(lake, 5, {0: (Progress(1, 0), records(2))})
    lake.writer(WriterIdentity("job-2", 1)).append(ssp(0), records(3))
    lake.writer(None).append(ssp(0), records(4))
    assert totals(lake) == [1, 2, 3, 4]


def test_a_fence_between_the_look_and_the_commit_counts(lake: LakeSystem) -> None:
    """The writer has seen that it may write when the other one takes over."""

    table = lake.lake.open("sums")
    lake.admin().fence("sums", WriterIdentity("job-1", 5))
    rows = pa.Table.from_batches([RowForm(table.schema).batch([each[2] for each in records(1)])])
    with pytest.raises(ConflictError):
        table.append(rows, "job-1", {0: WriterMark(4, Progress(1, 0))})
    assert totals(lake) == []


@pytest.mark.few(1)
def test_many_writers_at_once(lake: LakeSystem) -> None:
    failed: list[BaseException] = []

    def write(partition: int) -> None:
        try:
            for number in range(5):
                publish(lake, 1, {partition: (Progress(number, 0), records(partition * 100 + number))})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(partition,)) for partition in range(PARTITIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert totals(lake) == sorted(partition * 100 + number for partition in range(PARTITIONS) for number in range(5))
    assert lake.admin().progress_of("job-1", map(ssp, range(PARTITIONS))) == {
        ssp(partition): Progress(4, 0) for partition in range(PARTITIONS)
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "it has no value"),
        (b"{", "does not fit the schema"),
        (b'{"word": 5}', "does not fit the schema"),
        (b'{"total": "many"}', "does not fit the schema"),
    ],
)
def test_a_value_that_is_no_row_is_refused(lake: LakeSystem, value: bytes | None, said: str) -> None:
    assert said in (lake.admin().record_limits("sums").refused(None, value) or "")
    with pytest.raises(ConfigError, match=said):
        lake.writer(None).append(ssp(0), [*records(1), (0, None, value)])
    assert totals(lake) == []
    assert lake.admin().record_limits("sums").refused(None, b'{"word": "a"}') is None


def test_a_table_is_created_once(lake: LakeSystem, kind: Kind, tmp_path: Path) -> None:
    admin = lake.admin()
    assert admin.create_stream("sums", PARTITIONS) is False
    with pytest.raises(IncompatibleError, match="exists with 3 partitions, not 4"):
        admin.create_stream("sums", 4)
    with pytest.raises(NotFoundError, match="there is no partition 3"):
        lake.writer(None).append(ssp(3), records(1))
    with pytest.raises(NotFoundError, match="create it"):
        admin.partition_count("others")
    assert admin.streams() == ["sums"]
    identity = admin.stream_identity("sums")
    assert admin.create_stream("others", 1) is True
    assert admin.stream_identity("others") != identity == admin.stream_identity("sums")


def test_a_table_of_somebody_else_is_written_by_its_own_schema(kind: Kind, tmp_path: Path) -> None:
    lake = lake_of(kind, tmp_path, schema="wrong STRING", partitions="2")
    required = pa.schema([pa.field("word", pa.string(), nullable=False), pa.field("total", pa.int64())])
    if kind == "delta":
        DeltaTable.create(f"{tmp_path}/tables/sums", required)
    else:
        found: Any = lake.lake
        found._catalog().create_namespace("default")
        found._catalog().create_table("default.sums", required)
    assert lake.admin().partition_count("sums") == 2
    lake.writer(None).append(ssp(1), records(1))  # this notes the number
    assert lake_of(kind, tmp_path, partitions="5").admin().partition_count("sums") == 2
    assert "`word` is null" in (lake.admin().record_limits("sums").refused(None, b'{"total": 1}') or "")
    with pytest.raises(ConfigError, match="`word` is null"):
        lake.writer(None).append(ssp(0), [*records(3), (0, None, b'{"total": 1}')])
    assert totals(lake) == [1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": "0"}, "is not a number from 1"),
        ({"schema": "word"}, "`systems.lake.schema`"),
        ({"changes": "ignore"}, "it is refuse, skip, added"),
        ({"poll.ms": "soon"}, "is not a number from 1"),
        ({"where": "there"}, "where"),
        ({"schemas.word": "n INT"}, "unknown options: `systems.lake.schemas.word`"),
    ],
)
def test_wrong_options_are_refused(kind: Kind, tmp_path: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        lake_of(kind, tmp_path, **options)


world = fixture_of(lambda kind, tmp_path: LakeWorld(tmp_path, kind))


@pytest.mark.few(1)
def test_each_message_is_there_once(world: LakeWorld) -> None:
    """One driver after the other is killed: before a commit to the table, within it, and when it was committed."""
    world.kill_drivers("after the record", "begin", "mark", "commit", "committed")
    world.finish()


@pytest.mark.few(1)
def test_a_table_that_was_deleted_is_not_made_again(world: LakeWorld, kind: Kind, tmp_path: Path) -> None:
    world.put(1, 2, 3)
    world.finish()
    world.finish()  # its last commit leaves nothing to be published
    if kind == "delta":
        shutil.rmtree(tmp_path / "lake" / "tables" / "sums")
    else:
        found: Any = world.lake.lake
        found._catalog().drop_table("default.sums")
    advice = f"`penstock stream create lake.sums --partitions {TASKS}`.*--with-state clear --stream m.events"
    with pytest.raises(NotFoundError, match=f"`lake.sums` was deleted since the last checkpoint.*{advice}"):
        world.next()
    with pytest.raises(NotFoundError):
        world.lake.lake.open("sums")


@pytest.mark.few(1)
def test_a_table_that_was_made_again_gets_what_follows(
    world: LakeWorld, kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.put(1, 2, 3)
    world.finish()
    world.finish()
    if kind == "delta":
        shutil.rmtree(tmp_path / "lake" / "tables" / "sums")
    else:
        found: Any = world.lake.lake
        found._catalog().drop_table("default.sums")
    world.lake.admin().create_stream("sums", TASKS)
    caplog.clear()
    world.put(4)
    driver = world.next()
    assert "the output `lake.sums` was deleted and created again since the last checkpoint" in caplog.text
    driver.loop.start()
    drain(driver)
    driver.loop.finish()
    assert len(world.output()) == 1
