"""`penstock state import-spark`: what real state becomes in a store, what is refused, what a death leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from penstock.api.serdes.values import OrderedLong
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.cli.main import app as cli
from penstock.cli.shared.application import load_application
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.job.lease import LeaseHolder, acquire
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.state.reading.reader import read_store
from penstock.system.partitioner import partition_of
from penstock.system.registry import open_systems
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.faults.plan import Fault, Faults
from tests.support.jobs.home import wait_until
from tests.support.processes.python import PENSTOCK, run_python
from tests.support.stores.spark_state import GOLDEN
from tests.support.tools.leases import LONG_MS, EagerKeeper
from tests.support.tools.places import ROOT

TASKS = 3
PATHS = JobPaths("moved", "1")
TOTALS = GOLDEN / "tws-lz4" / "checkpoint"
APPLICATION = """
import penstock as ps


class Count(ps.StreamTask):
    def init(self, context):
        self.totals = context.store("totals")

    def process(self, envelope, collector, coordinator):
        total = self.totals.get(envelope.key) or {"c": 0, "last": None}
        self.totals.put(envelope.key, {"c": total["c"] + 1, "last": "here"})


def build(partitioned=True):
    app = ps.StreamApplication("moved")
    app.store("totals", key=ps.String(), value=ps.Json())
    app.store("counts", key=ps.String(), value=ps.Long())
    app.store("bytes", key=ps.Bytes(), value=ps.Bytes())
    app.store("numbers", key=ps.Long(), value=ps.Long())
    rides = app.input("local.rides", key=ps.String(), value=ps.Json())
    if partitioned:
        rides = rides.partition_by(lambda ride: ride["k"], key=ps.String())
    rides.process(Count, stores=["totals", "counts", "bytes", "numbers"])
    return app


def lasting(ttl_ms=60_000):
    app = ps.StreamApplication("moved")
    app.store("totals", ttl_ms=ttl_ms)
    rides = app.input("local.rides").partition_by(lambda ride: ride["k"])
    rides.process(Count, stores=["totals"])
    return app


def direct():
    app = build(partitioned=False)
    app.input("local.others", key=ps.String(), value=ps.Json()).process(Count, stores=["totals"])
    return app
"""
FUNCTIONS = """
def count(key, value):
    return None if key["k"] is None else (key["k"].upper(), value["c"])


def numbered(key, value):
    return None if key["k"] is None else (-int.from_bytes(key["k"].encode()[:7]), value["c"])


def whole(key, value):
    return (key["k"] or "nobody", value)


def entry_of_user(key, value):
    own = key["key"]["k"] or ""
    return f"{own}/{key['userKey']['p']}", value["n"], own


def one_key(key, value):
    return "same", value["c"]


def nothing(key, value):
    return None


def broken(key, value):
    return {}["x"]


def not_a_pair(key, value):
    return "k"


def null_value(key, value):
    return "k", None
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moved.py").write_text(APPLICATION)
    (tmp_path / "maps.py").write_text(FUNCTIONS)
    invoke("stream", "create", "rides", "--partitions", str(TASKS))
    return tmp_path


def invoke(*arguments: str, status: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == status, result.output + repr(result.exception)
    return result.stdout, result.stderr


def import_spark(
    *arguments: str, store: str = "totals", source: Path = TOTALS, status: int = 0, app: str = "moved.py:build"
) -> tuple[str, str]:
    return invoke("state", "import-spark", app, str(source), "--store", store, "--yes", *arguments, status=status)


def import_json(*arguments: str, store: str = "totals", source: Path = TOTALS) -> Any:
    return json.loads(import_spark(*arguments, "--json", store=store, source=source)[0])


def config(*assignments: str) -> JobConfig:
    return load_config(assignments=["job.name=moved", *assignments])


def content(store: str, *assignments: str) -> dict[bytes, bytes]:
    """The content that the last checkpoint restores; each key must be in the task that owns it."""
    found = list(read_store(config(*assignments), store))
    assert all(task == partition_of(key, TASKS) for task, key, _ in found)
    assert len({key for _, key, _ in found}) == len(found)
    return {key: value for _, key, value in found}


def expected(variable: str, batch: int) -> dict[str | None, Any]:
    """Spark's own reading of the variable: key column -> columns of the value."""
    entries = json.loads((GOLDEN / "tws-lz4" / "expected.json").read_text())[variable][str(batch)]
    return {key[0]: value for _, key, value in map(json.loads, entries)}


def log() -> CheckpointLog:
    return CheckpointLog(FileObjectStore(os.environ["PENSTOCK_HOME"] + "/jobs"), PATHS)


def state_files() -> set[str]:
    store = FileObjectStore(os.environ["PENSTOCK_HOME"] + "/jobs")
    return {key for key in store.list(PATHS.root) if "/state/" in key}


def total_of(batch: int) -> dict[bytes, bytes]:
    return {
        str(key).encode(): orjson.dumps({"c": count, "last": last})
        for key, (count, last) in expected("total", batch).items()
    }


# What comes in.


@pytest.mark.few(1)
@pytest.mark.parametrize("backends", ["changelog-files", "blob", "changelog-stream", "changelog-files,blob"])
def test_every_entry_is_in_the_store_whatever_the_backend(backends: str) -> None:
    own = ("-c", f"stores.backup.factories={backends}", "-c", f"stores.restore.factories={backends}")
    facts = import_json("--state-var", "total", "--batch", "0", *own)
    assert content("totals", *own[1::2]) == total_of(0)
    assert sum(facts["entries"]) == len(expected("total", 0)) == 7
    assert (facts["operator"], facts["batch"], facts["leftOut"], len(facts["entries"])) == (0, 0, 0, TASKS)
    assert facts["columns"][0] == {
        "of": "key", "column": "k", "type": "string", "mapping": "the key, str", "problem": None
    }  # fmt: skip
    record = log().read().latest
    assert record is not None
    assert (str(record.id), record.task_count, record.ended) == (facts["checkpoint"], TASKS, "stopped")
    assert record.stores == {"totals": "process-1 string json"}
    if "," in backends:
        invoke("state", "verify", "moved", *own)


def test_a_function_maps_and_leaves_out() -> None:
    facts = import_json("--state-var", "total", "--map", "maps.py:count", store="counts")
    spark = {key: value[0] for key, value in expected("total", 4).items() if key is not None}
    assert content("counts") == {key.upper().encode(): count.to_bytes(8, "big") for key, count in spark.items()}
    assert facts["leftOut"] == 1
    assert [column["mapping"] for column in facts["columns"]] == [
        "given to `maps.py:count` as str",
        "given to `maps.py:count` as int",
        "given to `maps.py:count` as str",
    ]


def test_numbers_are_where_the_messages_with_these_keys_go() -> None:
    """Messages have the number in another form than the keys of stores."""
    import_spark("--state-var", "total", "--map", "maps.py:numbered", store="numbers")
    found = [(task, OrderedLong().from_bytes(key)) for task, key, _ in read_store(config(), "numbers")]
    assert {number for _, number in found} == {
        -int.from_bytes(key.encode()[:7]) for key in expected("total", 4) if key is not None
    }
    assert all(task == partition_of(number.to_bytes(8, signed=True), TASKS) for task, number in found)


def test_a_function_says_which_messages_an_entry_belongs_to() -> None:
    import_spark("--state-var", "last", "--map", "maps.py:entry_of_user", store="counts")
    found = [(task, key.decode()) for task, key, _ in read_store(config(), "counts")]
    assert len(found) == 12
    assert all(task == partition_of(key.split("/")[0].encode(), TASKS) for task, key in found)


def test_a_list_state_becomes_a_list() -> None:
    import_spark("--state-var", "seen", "--map", "maps.py:whole")
    wanted = {
        (key or "nobody").encode(): [{"i": i, "k": k} for i, k in rows] for key, rows in expected("seen", 4).items()
    }
    assert {key: orjson.loads(value) for key, value in content("totals").items()} == wanted


def test_raw_bytes_are_sparks_own() -> None:
    import_spark("--raw", "--state-var", "total", store="bytes")
    found = content("bytes")
    assert len(found) == 8
    assert all(key[0] == value[0] == 0 and len(key) % 8 == len(value) % 8 == 1 for key, value in found.items())
    assert any(b"key-5" in key for key in found)


def test_a_memory_store() -> None:
    own = ("-c", "stores.totals.factory=memory")
    import_spark("--state-var", "total", "--batch", "0", *own)
    assert content("totals", own[1]) == total_of(0)


def test_nothing_at_all_is_an_empty_store() -> None:
    facts = import_json("--state-var", "total", "--map", "maps.py:nothing")
    assert (sum(facts["entries"]), facts["leftOut"]) == (0, 8)
    assert content("totals") == {}


@pytest.mark.parametrize(("default", "first"), [("oldest", 0), ("upcoming", 9)])
def test_a_job_that_never_ran_begins_where_its_first_start_would(default: str, first: int, project: Path) -> None:
    (project / "rides.jsonl").write_text("".join(json.dumps({"k": f"key-{n}"}) + "\n" for n in range(9)))
    invoke("stream", "publish", "rides", "--file", "rides.jsonl", "--key", "k")
    _, said = import_spark("--state-var", "total", "--batch", "0", "-c", f"samza.offset.default={default}")
    assert "penstock checkpoint set moved-1" in said
    record = log().read().latest
    assert record is not None
    offsets = {str(ssp): offset for own in record.next_offsets.values() for ssp, offset in own.items()}
    assert offsets.keys() == {f"local.rides.{task}" for task in range(TASKS)}
    assert sum(offsets.values()) == first
    (project / "offsets.json").write_text('{"local.rides": {"0": 1}}')
    invoke("checkpoint", "set", "moved", "--offsets", "offsets.json", "--yes")
    assert content("totals") == total_of(0)


# A job that has something already.


def test_other_stores_and_positions_stay() -> None:
    import_spark("--state-var", "total", "--batch", "0")
    before = log().read().latest
    import_spark("--state-var", "total", "--map", "maps.py:count", store="counts")
    after = log().read().latest
    assert before is not None
    assert after is not None
    assert after.parent == before.id
    assert after.next_offsets == before.next_offsets
    assert set(after.stores) == {"totals", "counts"}
    assert content("totals") == total_of(0)
    assert len(content("counts")) == 7


def test_content_is_replaced_only_if_asked() -> None:
    import_spark("--state-var", "total", "--batch", "0")
    _, error = import_spark("--state-var", "total", "--map", "maps.py:whole", status=1)
    assert "--replace" in error
    assert content("totals") == total_of(0)
    import_spark("--state-var", "total", "--map", "maps.py:whole", "--replace")
    assert len(content("totals")) == 8
    older = log().read().restorable[0]
    kept = {key: value for _, key, value in read_store(config(), "totals", older)}
    assert kept == total_of(0), "an older checkpoint that is retained stays whole"


def test_an_empty_store_is_no_content() -> None:
    import_spark("--state-var", "total", "--map", "maps.py:nothing")
    import_spark("--state-var", "total", "--batch", "0")
    assert content("totals") == total_of(0)


def test_a_running_job_is_refused() -> None:
    objects = FileObjectStore(os.environ["PENSTOCK_HOME"] + "/jobs")
    keeper = EagerKeeper(acquire(objects, PATHS, LeaseHolder.of_this_process("r"), LONG_MS, float("inf")))
    keeper.start()
    _, error = import_spark("--state-var", "total", "--batch", "0", status=1)
    keeper.stop(10)
    assert "running" in error or "lease" in error
    assert log().read().latest is None
    assert not state_files()


def test_another_number_of_tasks_is_refused() -> None:
    import_spark("--state-var", "total", "--batch", "0")
    _, error = import_spark(
        *("--state-var", "total", "--map", "maps.py:count", "-c", "job.intermediate.stream.partitions=5"),
        store="counts",
        status=1,
    )
    assert f"{TASKS} tasks" in error


def test_keys_that_no_single_task_owns_are_refused() -> None:
    invoke("stream", "create", "others", "--partitions", "2")
    _, error = import_spark("--state-var", "total", "--batch", "0", app="moved.py:direct", status=1)
    assert "more than one way" in error
    assert "partition_by" in error
    _, error = import_spark(
        *("--state-var", "total", "--batch", "0", "-c", "task.broadcast.inputs=local.others#0"),
        app="moved.py:direct",
        status=1,
    )
    assert "`local.others`, which every task reads" in error


# What cannot be mapped.


def test_the_table_says_for_each_column_why_not() -> None:
    out, error = import_spark(source=GOLDEN / "agg-lz4" / "checkpoint", status=1)
    lines = [line.split() for line in out.splitlines()]
    types = {line[1]: " ".join(line[3:]) for line in lines if len(line) > 3 and line[0] in {"key", "value"}}
    assert types["k"] == "the key, str"
    assert types["count"] == "`count`, int"
    assert types["sum"] == "`sum`, float; NaN is refused"
    assert types["max_8"].startswith("CANNOT BE MAPPED: the serde `json` cannot hold bytes")
    assert types["max_10"] == "`max_10`, datetime; comes back as str"
    assert types["max_16"] == "`max_16`, dict"
    assert types["max_12"].startswith("CANNOT BE MAPPED: the serde `json` cannot hold Decimal")
    assert "column `max_8` of the value (binary)" in error
    assert "`max_13`" in error
    assert "--map" in error
    assert not state_files()
    assert log().read().end == 0, "not even a claim"


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("arguments", "store", "source", "message"),
    [
        (["--state-var", "last"], "totals", "tws-lz4", "Spark's key has 2 columns"),
        (["--state-var", "total"], "counts", "tws-lz4", "Spark's value has 2 columns"),
        (["--state-var", "seen"], "counts", "tws-lz4", "a list of rows"),
        ([], "totals", "window-zstd", "Spark's key has 2 columns"),
        (["--state-var", "total"], "totals", "tws-lz4", "the key of Spark's key {'k': None} is null"),
        (["--state-var", "total", "--map", "maps.py:one_key"], "counts", "tws-lz4", "two entries become the key"),
        (["--state-var", "total", "--map", "maps.py:broken"], "counts", "tws-lz4", "KeyError: 'x'"),
        (["--state-var", "total", "--map", "maps.py:not_a_pair"], "counts", "tws-lz4", "returned 'k'"),
        (["--state-var", "total", "--map", "maps.py:null_value"], "counts", "tws-lz4", "the value of Spark's key"),
        (
            ["--state-var", "total", "--map", "maps.py:whole"],
            "counts",
            "tws-lz4",
            "cannot be written by the serde `long`",
        ),
        (["--state-var", "nope"], "totals", "tws-lz4", "no state variable `nope`"),
    ],
)
def test_what_cannot_be_mapped_changes_nothing(arguments: Sequence[str], store: str, source: str, message: str) -> None:
    _, error = import_spark(*arguments, store=store, source=GOLDEN / source / "checkpoint", status=1)
    assert message in error
    assert not state_files()
    assert log().read().end == 0


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("arguments", "store", "message"),
    [
        (["--raw", "--state-var", "total"], "totals", "needs a store of Bytes"),
        (["--raw", "--map", "maps.py:count"], "totals", "--raw takes no function"),
        (["--state-var", "total"], "nope", "no store `nope`; it has: `totals`, `counts`, `bytes`"),
        (["--state-var", "total", "--map", "maps.py:nope"], "counts", "no function `nope`"),
        (["--state-var", "total", "--map", "nope"], "counts", "file.py:function"),
        ([], "totals", "state variables `kept`, `last`, `seen`, `total`: name one"),
    ],
)
def test_mistakes_in_the_call(arguments: Sequence[str], store: str, message: str) -> None:
    _, error = import_spark(*arguments, store=store, status=2)
    assert message in error


def test_without_a_terminal_nobody_is_asked() -> None:
    arguments = ("state", "import-spark", "moved.py:build", str(TOTALS), "--store", "totals", "--state-var", "total")
    _, error = invoke(*arguments, "--batch", "0", status=2)
    assert "--yes" in error
    assert log().read().end == 0


def test_a_damaged_checkpoint_of_spark_changes_nothing(tmp_path: Path) -> None:
    source = Path(shutil.copytree(TOTALS, tmp_path / "damaged"))
    (changelog,) = source.glob("state/0/0/5*.changelog")
    changelog.write_bytes(changelog.read_bytes()[:-40])
    _, error = import_spark("--state-var", "total", "--map", "maps.py:count", store="counts", source=source, status=1)
    assert "5.changelog` breaks off" in error
    assert log().read().end == 0


# Deaths.

FAULTY = "tests.support.faults.fault_backend:FaultyFiles"


def killed_import(project: Path, *faults: Fault, status: int = -signal.SIGKILL) -> str:
    """An import in a process of its own, over `totals` that hold something already."""
    Faults(project / "home" / "faults").plan(*faults)
    done = run_python(
        *(*PENSTOCK, "state", "import-spark", "moved.py:build", str(TOTALS)),
        *("--store", "totals", "--state-var", "total", "--map", "maps.py:whole", "--replace", "--yes"),
        *("-c", f"stores.backup.factories={FAULTY}", "-c", f"stores.restore.factories={FAULTY}"),
        environ={"PYTHONPATH": str(ROOT), "TMPDIR": str(project)},
        status=status,
    )
    wait_until(lambda: not list(project.glob("penstock-*")), "the end of its scratch folders")
    return done.stderr


@pytest.mark.parametrize(
    ("point", "skip"),
    [
        ("upload.end", 2),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("init", 0), ("put.begin", 6), ("snapshot.file", 6), ("snapshot.done", 1))
        ),
    ],
)
def test_an_import_that_is_killed_leaves_only_what_gc_collects(project: Path, point: str, skip: int) -> None:
    own = ("-c", f"stores.backup.factories={FAULTY}", "-c", f"stores.restore.factories={FAULTY}")
    Faults(project / "home" / "faults").plan()
    import_spark("--state-var", "total", "--batch", "0", *own)
    before, files = log().read(), faulty_files()
    killed_import(project, Fault("death", point, "kill", skip=skip))
    assert log().read().latest == before.latest
    assert content("totals", *own[1::2]) == total_of(0)
    if point in {"snapshot.done", "upload.end"}:
        assert faulty_files() > files
    Faults(project / "home" / "faults").plan()
    invoke("state", "gc", "moved", *own)
    assert faulty_files() == files
    assert content("totals", *own[1::2]) == total_of(0)
    killed_import(project, status=0)
    assert len(content("totals", *own[1::2])) == 8


def test_an_import_that_is_killed_after_its_checkpoint_is_whole(project: Path) -> None:
    own = (f"stores.backup.factories={FAULTY}", f"stores.restore.factories={FAULTY}")
    Faults(project / "home" / "faults").plan()
    killed_import(project, Fault("death", "clean_up.begin", "kill"))
    assert len(content("totals", *own)) == 8


def test_a_backend_that_fails_for_a_while(project: Path) -> None:
    own = (f"stores.backup.factories={FAULTY}", f"stores.restore.factories={FAULTY}")
    Faults(project / "home" / "faults").plan()
    killed_import(project, Fault("weather", "upload.begin", "retryable", times=3), status=0)
    assert len(content("totals", *own)) == 8


def test_a_backend_that_fails_for_good(project: Path) -> None:
    Faults(project / "home" / "faults").plan()
    error = killed_import(project, Fault("end", "upload.begin", "fail"), status=1)
    assert "`end` is final" in error
    assert log().read().latest is None


def faulty_files() -> set[str]:
    store = FileObjectStore(os.environ["PENSTOCK_HOME"] + "/jobs")
    return {key for key in store.list("") if "/state/" in key}


def test_entries_of_a_store_with_a_time_to_live_count_from_the_next_batch(project: Path) -> None:
    variable = ("--state-var", "total", "--map", "maps.py:whole")
    import_spark(*variable, app="moved.py:lasting")
    imported = content("totals")
    assert imported
    _, said = invoke(
        "state", "import-spark", "moved.py:lasting", str(TOTALS), "--store", "totals", "--yes", *variable, status=1
    )
    assert "holds entries" in said
    clock = SettableClock(10**15)
    settings = config("task.commit.ms=0")
    systems = open_systems(settings)

    def run() -> dict[bytes, bytes]:
        systems["local"].writer(None).append(SystemStreamPartition("local", "rides", 0), [(0, None, b'{"k": "new"}')])
        graph = load_application("moved.py:lasting").app.graph()
        objects = FileObjectStore(project / "home" / "jobs")
        with closing(InProcessDriver(graph, settings, objects, systems, until_latest=True, clock=clock)) as driver:
            driver.loop.run()
        return content("totals")

    assert run().keys() == imported.keys() | {b"new"}
    clock.advance(61)
    assert run().keys() == {b"new"}
