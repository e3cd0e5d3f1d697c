"""`penstock check`: everything for which a start would be refused, without a start and without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.system.local import LocalSystem
from tests.support.processes.python import run_python
from tests.support.tools.cli import call, call_json, own_home

GOOD = """
import penstock as ps

class Total(ps.StreamTask):
    def process(self, envelope, collector, coordinator):
        collector.send("totals", value=1)

app = ps.StreamApplication("flights")
app.store("totals")
app.output("local.totals")
app.input("local.flights").process(Total, stores=["totals"], id="total")
"""
WRONG = """
import penstock as ps

app = ps.StreamApplication("flights")
app.store("unused")
left = app.input("local.missing")
right = app.input("local.gone")
left.join(right, lambda a, b: a, within_ms="1h", id="both").send_to(app.output("local.out"))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = own_home(tmp_path, monkeypatch)
    LocalSystem("local", str(made / "streams")).admin().create_stream("flights", 3)
    return made


def written(folder: Path, text: str) -> str:
    (folder / "job_to_check.py").write_text(text)
    return f"{folder / 'job_to_check.py'}:app"


def test_an_application_that_could_start(tmp_path: Path, home: Path) -> None:
    facts = call_json("check", written(tmp_path, GOOD))
    assert (facts["job"], facts["tasks"], facts["beginsWith"], facts["isRunning"]) == ("flights-1", 3, None, False)
    assert "job flights-1 could start" in call("check", written(tmp_path, GOOD))[1]
    assert not list((home / "jobs").rglob("*")), "nothing was written"


def test_all_refusals_are_said_at_once(tmp_path: Path) -> None:
    err = call("check", written(tmp_path, WRONG), "-c", "streams.local.other.retention.ms=1h", status=2)[1]
    assert "the start is refused for 4 reasons:" in err
    for part in ("store `unused` is declared", "`local.missing`", "`local.gone`", "streams.local.other.retention"):
        assert part in err


def test_mistakes_of_the_configuration_come_with_those_of_the_application(tmp_path: Path) -> None:
    err = call("check", written(tmp_path, WRONG), "-c", "task.commit.ms=3m", "-c", "nonsense=1", status=2)[1]
    for part in ("did you mean `3min`", "`nonsense`", "store `unused` is declared"):
        assert part in err


def test_a_changelog_that_does_not_fit_is_seen(tmp_path: Path, home: Path) -> None:
    LocalSystem("local", str(home / "streams")).admin().create_stream("log", 2)
    given = ("-c", "stores.totals.backup.factories=changelog-stream", "-c", "stores.totals.changelog=local.log")
    assert (
        "the changelog `local.log` has 2 partitions, the job 3 tasks"
        in call("check", written(tmp_path, GOOD), *given, status=2)[1]
    )


def test_it_needs_no_spark(tmp_path: Path) -> None:
    code = f"""if True:
    import sys
    from penstock.cli.main import app
    try:
        app(["check", {written(tmp_path, GOOD)!r}])
    except SystemExit as end:
        print(end.code, "pyspark" in sys.modules)
    """
    done = run_python("-c", code)
    assert done.stdout.splitlines()[-1] == "0 False"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"schema": "n BIGINT"}, "Penstock cannot write to `lake.rides`"),
        ({}, "need a schema"),
        ({"order": "name", "schema": "n BIGINT"}, "`systems.lake.order` is for inputs"),
        ({"format": "csv", "schema": "n BIGINT"}, "outputs are Parquet or lines of JSON"),
    ],
)
def test_an_output_that_cannot_be_written(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    """The start says the same, before it makes anything."""
    (folder := tmp_path / "lake" / "rides").mkdir(parents=True)
    (folder / "hour-0.json").write_text('{"n": 1}\n')
    given = {"samza.factory": "files", "folder": str(tmp_path / "lake"), **options}
    keys = [part for key, value in given.items() for part in ("-c", f"systems.lake.{key}={value}")]
    keys += ["-c", "streams.lake.rides.output.guarantee=exactly-once"]
    text = 'import penstock as ps\napp = ps.StreamApplication("rides")\n'
    text += (
        'app.input("lake.rides").send_to(app.output("lake.rides"))\napp.input("local.flights").send_to("lake.new")\n'
    )
    text = text.replace('send_to("lake.new")', 'send_to(app.output("lake.new"))')
    error = call("check", written(tmp_path, text), *keys, status=2)[1]
    assert reason in error
    assert ("lake.new" in error) == (reason == "need a schema")
    assert [each.name for each in (tmp_path / "lake").rglob("*")] == ["rides", "hour-0.json"]
