"""The command line: the configuration, loading applications, and runs that do not come to Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.run import StopSignals
from penstock.cli.shared.application import load_application
from penstock.cli.shared.errors import ApplicationLoadError
from penstock.config.keys import describe
from penstock.driver.job import Job
from penstock.driver.part import StopRequest
from penstock.driver.program import RunObserver
from penstock.driver.show.progress import JobProgress, ProgressBoard
from penstock.errors import ConfigError, NotFoundError
from penstock.testing import SettableClock
from tests.support.processes.python import PENSTOCK, run_python
from tests.support.tools.cli import call, call_json

DEADLINE_S = 60.0
APPLICATION = """
import penstock as ps

def build():
    app = ps.StreamApplication("flights")
    app.input("local.flights").filter(lambda flight: flight["n"])
    return app

app = build()
number = 7
def broken():
    raise RuntimeError("no application today")
"""
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def imports() -> Iterator[None]:
    """Undo what loading an application does to the interpreter."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


# Configuration.

STREAMED = "stores.aircraft.backup.factories=changelog-stream"


def test_config_check_says_what_holds_and_where_it_comes_from() -> None:
    Path("p.yaml").write_text("task:\n  commit.ms: 5s\nstores.aircraft.object.cache.size: 9\n")
    Path("key").write_text("abc")
    values = call_json("config", "check", "--config", "p.yaml", "-c", "spark.hadoop.fs.s3a.secret.key=file:key")
    found = {each["key"]: (each["value"], each["origin"]) for each in values}
    assert found["task.commit.ms"] == ("5000", "p.yaml:2")
    assert found["stores.aircraft.object.cache.size"] == ("9", "p.yaml:3")
    assert found["job.id"] == ("1", "default")
    assert found["job.name"] == (None, "the application's name")
    assert found["systems.local.samza.factory"] == ("local", "default")
    assert found["spark.hadoop.fs.s3a.secret.key"] == ("(hidden)", "-c")


def test_config_check_shows_what_is_set_and_the_rest_on_demand() -> None:
    Path("p.yaml").write_text("task:\n  commit.ms: 5s\n")
    out, error = call("config", "check", "--config", "p.yaml", "-c", "job.id=7")
    assert "p.yaml:2" in out
    shown = {line.split()[0]: line.split()[1] for line in out.splitlines() if "." in line}
    assert shown == {"job.id": "7", "job.name": "-", "task.commit.ms": "5000"}
    assert "--all" in error
    everything, error = call("config", "check", "--config", "p.yaml", "--all")
    assert "task.checkpoint.retained" in everything
    assert not error


def test_config_check_reports_every_mistake() -> None:
    out, error = call("config", "check", "-c", "job.nme=x", "-c", "task.commit.ms=fast", status=2)
    assert not out
    assert "did you mean `job.name`" in error
    assert "`task.commit.ms` = `fast`" in error
    kafka = ("-c", "systems.k.samza.factory=kafka", "-c", "systems.k.consumer.bootstrap.servers=b:1")
    error = call("config", "check", *kafka, "-c", "systems.k.consumer.fetch.mn.bytes=1", status=2)[1]
    assert "`systems.k.consumer.fetch.mn.bytes`: did you mean `systems.k.consumer." in error


def test_config_keys_finds_a_key_by_its_name_or_a_part_of_it() -> None:
    assert [each["key"] for each in call_json("config", "keys", "job.lease.ms")] == ["job.lease.ms"]
    assert "stores.<name>.factory" in [each["key"] for each in call_json("config", "keys", "stores.totals.factory")]
    error = call("config", "keys", "job.lese.ms", status=1)[1]
    assert error == "error: there is no key `job.lese.ms`: did you mean `job.lease.ms`?\n"
    assert "`penstock config keys` lists" in call("config", "keys", "zzzz", status=1)[1]
    error = call("config", "keys", "task.checkpoint.system", status=1)[1]
    assert error.startswith("error: `task.checkpoint.system` is a key of Samza: remove it")


def test_an_unknown_command_names_those_there_are() -> None:
    assert "Did you mean 'check'" in call("config", "chekc", status=2)[1]
    assert "Commands: 'check', 'keys'." in call("config", "list", status=2)[1]
    assert "'run', 'check', 'simulate', " in call("zzz", status=2)[1]


@pytest.mark.usefixtures("imports")
def test_config_check_with_an_application() -> None:
    Path("flights.py").write_text(
        APPLICATION + 'app = ps.TaskApplication("flights", ps.StreamTask)\n'
        'app.input("local.flights")\napp.store("aircraft")\napp.output("far.out")\n'
    )
    assert "system `far`" in call("config", "check", "flights.py:app", status=2)[1]
    for more, said in (
        (["streams.far.ot.output.guarantee=exactly-once"], "`far.ot` is not an output of the application"),
        (["streams.local.flights.output.guarantee=exactly-once"], "`local.flights` is not an output"),
        (["task.dead.letter.stream=far.out"], "is an output of the application as well"),
        (["stores.aircraft.changelog=far.out", STREAMED], "is an output and the changelog of store `aircraft`"),
        (["streams.far.out.on.data.loss=skip"], "is not an input of the application"),
        (["systems.far.samza.factory=kafka", "systems.far.consumer.lingr=1"], "unknown option"),
    ):
        given = ["systems.far.samza.factory=memory", *more]
        error = call("config", "check", "flights.py:app", *(w for each in given for w in ("-c", each)), status=2)[1]
        assert said in error, error
    wrong = ("stores.planes.object.cache.size=1", "stores.aircraft.fctory=memory", "job.nme=x", "systems.x.path=/x")
    error = call("config", "check", "flights.py:app", *(w for each in wrong for w in ("-c", each)), status=2)[1]
    assert "4 mistakes in the configuration" in error
    assert "did you mean `stores.aircraft.factory`" in error
    assert "did you mean `job.name`" in error
    assert "`systems.x.samza.factory` is missing" in error
    assert "`stores.planes.*` is configured, but the application has the stores: `aircraft`" in error
    values = call_json(
        "config",
        "check",
        "flights.py:app",
        "-c",
        "systems.far.samza.factory=memory",
        "-c",
        "stores.rocksdb.block.cache.bytes=1MB",
    )
    found = {each["key"]: (each["value"], each["origin"]) for each in values}
    assert found["job.name"] == ("flights", "the application's name")
    cache = found["stores.aircraft.rocksdb.block.cache.bytes"]
    assert cache == ("1048576", "-c, as `stores.rocksdb.block.cache.bytes`")


def test_config_keys_lists_every_key() -> None:
    assert [each["key"] for each in call_json("config", "keys")] == [key.name for key in describe()]
    assert "task.commit.ms" in call("config", "keys")[0]


# Applications and runs, without Spark.


@pytest.mark.usefixtures("imports")
def test_an_application_from_a_file_or_a_module() -> None:
    Path("flights.py").write_text(APPLICATION)
    for reference in ("flights.py:app", "flights.py:build", "flights:app", "flights:build"):
        assert load_application(reference).app.name == "flights"
    loaded = load_application("flights.py:app")
    assert [module.__name__ for module in loaded.local_modules if module.__name__.startswith("penstock")] == [
        "penstock_app_flights"
    ]


@pytest.mark.usefixtures("imports")
@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("flights.py", "module:object"),
        ("flights.py:no", "applications there: `app`"),
        ("flights.py:number", "is a int, not an application"),
        ("flights.py:dict", "there is no `dict`"),
        ("no_such_module:app", "no module `no_such_module`"),
    ],
)
def test_what_is_no_application(reference: str, problem: str) -> None:
    Path("flights.py").write_text(APPLICATION)
    with pytest.raises(ConfigError, match=problem):
        load_application(reference)


@pytest.mark.usefixtures("imports")
def test_what_the_users_module_raises_is_told_with_the_users_traceback() -> None:
    Path("flights.py").write_text(APPLICATION)
    with pytest.raises(NotFoundError, match="no file"):
        load_application("no.py:app")
    with pytest.raises(ApplicationLoadError) as raised:
        load_application("flights.py:broken")
    assert "no application today" in raised.value.user_traceback
    assert "cli/shared/application.py" not in raised.value.user_traceback
    Path("bad.py").write_text("x = (")
    error = call("run", "bad.py:app", status=2)[1]
    assert error.index("SyntaxError") < error.index("error: `bad.py:app` could not be loaded")


@pytest.mark.few(1)
@pytest.mark.parametrize("line", ["", "import pyspark.sql\n"], ids=["imported later", "imported by the application"])
def test_a_folder_that_hides_an_installed_package_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "job.py").write_text(line + APPLICATION)
    done = run_python("-P", *PENSTOCK, "run", "job.py:app", folder=tmp_path, status=None)
    assert done.returncode
    assert f"`{tmp_path}` has a `pyspark`, which hides the installed package `pyspark`" in done.stderr


def test_functions_of_a_file_and_its_neighbours_run_where_the_files_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    (folder / "job.py").write_text(
        "import penstock as ps\nfrom helper import twice\napp = ps.StreamApplication('job')\n"
        "def work(x):\n    return twice(x) + 1\n"
    )
    pickling = (
        "import sys\nfrom penstock.cli.shared.application import load_application\nfrom pyspark import cloudpickle\n"
        "load_application('project/job.py:app').ship_by_value()\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(sys.modules['penstock_app_job'].work))"
    )
    done = subprocess.run([sys.executable, "-c", pickling], capture_output=True, check=True, timeout=DEADLINE_S)
    calling = "import pickle, sys\nprint(pickle.load(sys.stdin.buffer)(20))"
    called = subprocess.run(
        [sys.executable, "-c", calling], input=done.stdout, capture_output=True, cwd="/", check=True, timeout=DEADLINE_S
    )
    assert called.stdout.strip() == b"41"


@pytest.mark.usefixtures("imports")
def test_a_run_that_cannot_start() -> None:
    Path("flights.py").write_text(APPLICATION)
    assert "did you mean `task.commit.ms`" in call("run", "flights.py:app", "-c", "task.comit.ms=1", status=2)[1]
    assert "penstock stream create" in call("run", "flights.py:app", status=1)[1]
    error = call("run", "flights.py:app", "--until", "tomorrow", status=2)[1]
    assert "until='tomorrow': \"latest\" ends the job once it has read what the inputs hold now" in error


def test_a_traceback_only_with_debug() -> None:
    plain = call("status", "no", status=1)[1]
    asked = call("--debug", "status", "no", status=1)[1]
    assert "Traceback" not in plain
    assert asked.startswith("Traceback")
    assert asked.endswith(plain)
    assert "Traceback" not in call("status", "no", status=1)[1]


def progress(batch: int, rows: int) -> JobProgress:
    return JobProgress(
        id="u",
        run_id="r",
        name="flights-1",
        timestamp="",
        batch_id=batch,
        num_input_rows=10,
        num_output_rows=0,
        dead_letters=0,
        processed_rows_per_second=1234.5,
        duration_ms={},
        sources=(),
        total_input_rows=rows,
        last_checkpoint=None,
        container_bytes=0,
    )


def test_a_run_with_an_end_shows_how_much_is_left() -> None:
    board = ProgressBoard()
    observer = RunObserver(Job("flights-1", "r", board, StopRequest()))
    board.update(phase="restoring", restored_bytes=3 << 20)
    assert str(observer.look()) == "restoring (3.0 MB), 0 messages"
    board.update(phase="running", last=progress(1, 10), remaining=20, last_checkpoint="5-1")
    assert str(observer.look()) == "running, 10 of 30 messages, 1,234/s, batch 1, checkpoint 5-1"
    board.update(last=progress(2, 20))  # seen before `remaining` follows
    assert observer.look().total == 30
    board.update(remaining=10)
    assert observer.look().done == 20
    board.update(last=progress(2, 30), remaining=10)  # read again after a rewind
    assert (observer.look().done, observer.look().total) == (20, 30)


def test_a_run_without_an_end_counts() -> None:
    board = ProgressBoard()
    board.update(phase="running", last=progress(3, 30))
    view = RunObserver(Job("flights-1", "r", board, StopRequest())).look()
    assert (view.done, view.total, view.messages_text) == (30, None, "30 messages")


def test_signals_are_counted_those_of_one_moment_once() -> None:
    clock = SettableClock()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        with StopSignals(clock.monotonic) as signals:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # to the process group as well
            assert signals.count == 1
            clock.advance(1)
            signal.raise_signal(signal.SIGINT)
            assert signals.count == 2
        signal.raise_signal(signal.SIGINT)  # while the process ends
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)


def test_handlers_are_as_before_where_no_signal_came() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        signals.count_only()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
