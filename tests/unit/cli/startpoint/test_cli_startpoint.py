"""`penstock startpoint set|list|delete|export|import`, and what `penstock status` tells, of a job on disk."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.admin.jobs import open_job
from penstock.admin.startpoint.set import set_startpoint
from penstock.api.requests import StartpointOldest, StartpointSpecific, StartpointTimestamp
from penstock.api.ssp import SystemStreamPartition
from penstock.cli.main import app
from penstock.cli.startpoint import time_of
from penstock.errors import ConfigError
from penstock.start.startpoint_manager import TTL_MS, StartpointManager
from penstock.start.startpoint_request import StartpointRequest
from penstock.system.files.system import FilesSystem
from tests.support.stores.stopped_job import PATHS, SSP, STREAM, StoppedJob, saved, ssp
from tests.support.tools import cli

INPUT = f"local.{STREAM}"
APPLICATION = f'''
import penstock as ps

class Totals(ps.StreamTask):
    def process(self, envelope, collector, coordinator):
        pass

app = ps.StreamApplication("flights")
app.input("{INPUT}").process(Totals)
'''


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoppedJob:
    """It has read up to 4 and 7; one checkpoint before that up to 2 and 3."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    made = StoppedJob(tmp_path)
    made.run(saved(1, (2, 3)), saved(2))
    return made


call = partial(cli.call, "startpoint")


def set_json(*arguments: str) -> Any:
    """`set flights --stream ... --json`."""
    return json.loads(call("set", "flights", "--stream", INPUT, *arguments, "--json")[0])


def requests(job: StoppedJob) -> tuple[StartpointRequest, ...]:
    return StartpointManager(job.objects, PATHS).requests()


def test_set_writes_a_request_and_shows_what_it_means_now(job: StoppedJob) -> None:
    out, err = call("set", "flights", "--stream", INPUT, "--partition", "1", "--offset", "5")
    (found,) = requests(job)
    assert found.key.ssp == ssp(1)
    assert isinstance(found.startpoint, StartpointSpecific)
    assert found.startpoint.specific_offset == "5"
    assert (found.with_state, found.clamp) == (None, False)
    assert "2 messages back" in out
    for part in (
        "the state (`aircraft`) stays as it is (--with-state keep): messages that are read again count twice",
        f"would begin every input and all stores at one retained checkpoint, from checkpoint {saved(1).id}",
        "--with-state clear would empty the stores first",
        "the job's next start applies it once, even if that is a restart after a crash",
    ):
        assert part in err


def test_set_shows_files_of_a_folder(job: StoppedJob, tmp_path: Path) -> None:
    """The number of an offset of a file is of no use to people."""
    folder = tmp_path / "in" / "orders"
    folder.mkdir(parents=True)
    options = {"folder": str(tmp_path / "in"), "listing": str(tmp_path / "listing"), "partitions": "1"}
    system = FilesSystem.configured("files", options)
    for number in range(3):
        (folder / f"{number}.json").write_text('{"n": 1}\n' * 2)
        ends = system.admin().offsets("orders")
    at = SystemStreamPartition("files", "orders", 0)
    job.run(replace(saved(3), next_offsets={0: {at: ends[0].upcoming}}, task_count=1, tasks={0: saved(3).tasks[0]}))
    settings = {"samza.factory": "files", **options}
    given = [part for key, text in settings.items() for part in ("-c", f"systems.files.{key}={text}")]
    out, _ = call("set", "flights", "--stream", "files.orders", "--all-partitions", "--oldest", *given)
    assert "3 files back" in out
    assert "moves by" in out


def test_set_in_json(job: StoppedJob) -> None:
    found = set_json("--partition", "1", "--offset", "5", "--with-state", "nearest")
    assert (found["job"], found["dryRun"], found["withState"]) == ("flights-1", False, "nearest")
    assert found["checkpoint"] == found["nearest"] == str(saved(1).id)
    assert [(c["partition"], c["oldNext"], c["newNext"]) for c in found["changes"]] == [(0, 4, 2), (1, 7, 3)]
    (asked,) = found["requests"]
    assert (asked["kind"], asked["value"], asked["resolvesTo"], asked["status"]) == ("specific", "5", 5, "pending")
    assert asked["expiresMs"] - asked["createdMs"] == TTL_MS
    assert requests(job)[0].with_state == "nearest"


def test_all_partitions_at_a_time(job: StoppedJob) -> None:
    writer = job.system.writer(None)
    writer.append(ssp(0), [(1_370_044_800_000 + n, None, b"v") for n in range(3)])
    writer.close()
    found = set_json("--all-partitions", "--timestamp", "2013-06-01T00:00Z")
    assert [(r["partition"], r["value"], r["resolvesTo"]) for r in found["requests"]] == [
        (0, 1_370_044_800_000, 10),
        (1, 1_370_044_800_000, 10),
    ]
    assert [(c["oldNext"], c["newNext"]) for c in found["changes"]] == [(4, 10), (7, 10)]
    startpoints = [request.startpoint for request in requests(job)]
    assert all(isinstance(s, StartpointTimestamp) and s.timestamp_offset == 1_370_044_800_000 for s in startpoints)


def test_oldest_upcoming_and_a_task(job: StoppedJob) -> None:
    assert set_json("--partition", "0", "--oldest")["requests"][0]["resolvesTo"] == 0
    assert set_json("--partition", "0", "--upcoming")["requests"][0]["resolvesTo"] == 10
    for task in ("1", "Partition 1"):
        assert set_json("--partition", "1", "--oldest", "--task", task)["requests"][0]["task"] == "Partition 1"


@pytest.mark.parametrize("ahead_ms", [60_000, 3_600_000, 2**62])
def test_a_later_one_counts_whatever_the_clocks_say(job: StoppedJob, ahead_ms: int) -> None:
    """The one that is there was made by somebody whose clock is ahead."""
    ahead = time.time_ns() // 1_000_000 + ahead_ms
    elsewhere = StartpointManager(job.objects, PATHS, now_ms=lambda: ahead)
    elsewhere.write_startpoint(ssp(0), StartpointOldest(creation_timestamp=ahead))
    assert set_json("--partition", "0", "--offset", "9")["changes"][0]["newNext"] == 9
    found = {r["kind"]: r["status"] for r in json.loads(call("list", "flights", "--json")[0])}
    assert found == {"oldest": "superseded", "specific": "pending"}


def test_dry_run_writes_nothing(job: StoppedJob) -> None:
    before = job.files()
    out, err = call("set", "flights", "--stream", INPUT, "--partition", "1", "--oldest", "--dry-run")
    assert "7 messages back" in out
    assert "nothing was written" in err
    assert job.files() == before


def test_it_works_while_the_job_runs(job: StoppedJob) -> None:
    """No lease is taken, nothing is claimed."""
    claims = job.log.claims
    set_json("--partition", "0", "--oldest")
    assert job.log.claims == claims


@pytest.mark.parametrize(
    "arguments",
    [
        ("--partition", "0"),
        ("--oldest",),
        ("--oldest", "--partition", "0", "--all-partitions"),
        ("--oldest", "--upcoming", "--partition", "0"),
        ("--offset", "1", "--oldest", "--partition", "0"),
        ("--timestamp", "tomorrow", "--partition", "0"),
        ("--oldest", "--partition", "0", "--task", "task-x"),
        ("--oldest", "--partition", "0", "--clamp"),
        ("--oldest", "--partition", "-1"),
        ("--oldest", "--partition", "0", "--with-state", "drop"),
    ],
)
def test_mistakes_in_the_call(job: StoppedJob, arguments: tuple[str, ...]) -> None:
    before = job.files()
    call("set", "flights", "--stream", INPUT, *arguments, status=2)
    assert job.files() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--stream", INPUT, "--partition", "0", "--offset", "11"), "from 0 (oldest) to 9 (newest)"),
        (("--stream", INPUT, "--partition", "7", "--oldest"), "has 2 partitions"),
        (("--stream", "flights", "--all-partitions", "--oldest"), "`local.flights` is not an input of the job"),
        (("--stream", "local.other", "--all-partitions", "--oldest"), "not an input of the job"),
        (("--stream", "local.flights-1-aircraft-changelog", "--partition", "0", "--oldest"), "the changelog of store"),
        (("--stream", INPUT, "--partition", "0", "--oldest", "--task", "1"), "does not read"),
        (
            ("--stream", INPUT, "--partition", "0", "--offset", "1", "--with-state", "nearest"),
            f"the oldest one, {saved(1).id}, has `local.dep.flights.0` at 2 (wanted 1)",
        ),
    ],
)
def test_what_a_start_would_refuse_is_refused_at_once(job: StoppedJob, arguments: tuple[str, ...], said: str) -> None:
    before = job.files()
    assert said in call("set", "flights", *arguments, status=1)[1]
    assert job.files() == before


def kept_job(job: StoppedJob, **older: Any) -> None:
    """The two newest checkpoints were made after positions were moved while the state stayed."""
    job.run(saved(3, (2, 3), **older), *(saved(number, (4, 7), moved=(ssp(0),)) for number in (4, 5)))


NEAREST = ("--partition", "1", "--offset", "7", "--with-state", "nearest")


def test_nearest_says_which_checkpoints_it_passes_over(job: StoppedJob) -> None:
    kept_job(job)
    found = set_json(*NEAREST, "--dry-run")
    assert found["checkpoint"] == str(saved(3).id)
    (note,) = [note for note in found["notes"] if "passed over" in note]
    assert f"2 checkpoints, {saved(4).id} to {saved(5).id}, are nearer and passed over" in note
    assert "`local.dep.flights.0` was moved while the state stayed (--with-state keep)" in note
    assert "--accept-state" in note
    assert "agree" not in note
    accepted = set_json(*NEAREST, "--accept-state")
    assert accepted["checkpoint"] == str(saved(5).id)
    assert not any("passed over" in note for note in accepted["notes"])
    assert requests(job)[0].accept_state
    (listed,) = json.loads(call("list", "flights", "--json")[0])
    assert listed["acceptState"] is True


def test_keep_says_what_nearest_would_pass_over(job: StoppedJob) -> None:
    kept_job(job)
    notes = set_json("--partition", "1", "--offset", "6", "--dry-run")["notes"]
    assert any("are passed over by --with-state nearest" in note for note in notes)
    assert not any(
        "are passed over" in note
        for note in set_json("--partition", "1", "--offset", "6", "--accept-state", "--dry-run")["notes"]
    )


@pytest.mark.parametrize(
    "older",
    [
        {"stores": {"aircraft": "others string json"}},
        {"stores": {"aircraft": "totals string json", "gone": "totals string json"}},
    ],
    ids=["another operator", "a store is gone"],
)
def test_nearest_is_refused_if_the_application_does_not_fit(job: StoppedJob, older: dict[str, Any]) -> None:
    """A start would be refused as long as the startpoint waits. Nobody named the application: it is the last run's."""
    kept_job(job, **older)
    before = job.files()
    err = call("set", "flights", "--stream", INPUT, *NEAREST, status=1)[1]
    assert str(saved(3).id) in err
    assert "name it with --app" in err
    assert job.files() == before


FITS = APPLICATION.replace(".process(Totals)", '.process(Totals, stores=["aircraft"], id="totals")').replace(
    "app.input", 'app.store("aircraft")\napp.input'
)


@pytest.mark.parametrize(("text", "status"), [(FITS, 0), (APPLICATION, 1)], ids=["fits", "has no store"])
def test_nearest_looks_at_the_application(job: StoppedJob, tmp_path: Path, text: str, status: int) -> None:
    kept_job(job)
    (tmp_path / "flights.py").write_text(text)
    given = ("--app", f"{tmp_path / 'flights.py'}:app")
    err = call("set", "flights", "--stream", INPUT, *NEAREST, *given, status=status)[1]
    assert ("store `aircraft` is in checkpoint" in err) == (status == 1)
    assert len(requests(job)) == 1 - status


def test_an_application_that_has_to_reset_an_operator_is_told_so(job: StoppedJob, tmp_path: Path) -> None:
    kept_job(job, stores={"aircraft": "totals string json", "hours.window": "hours string-window1"})
    (tmp_path / "flights.py").write_text(FITS)
    given = ("--app", f"{tmp_path / 'flights.py'}:app")
    err = call("set", "flights", "--stream", INPUT, *NEAREST, *given)[1]
    assert "a start has to reset operators (--reset-operator)" in err


def test_accept_state_has_no_meaning_with_clear(job: StoppedJob) -> None:
    given = ("--partition", "1", "--oldest", "--with-state", "clear", "--accept-state")
    assert "leave one out" in call("set", "flights", "--stream", INPUT, *given, status=2)[1]


def test_clamp(job: StoppedJob) -> None:
    found = set_json("--partition", "0", "--offset", "11", "--clamp")
    assert found["requests"][0]["resolvesTo"] == 10
    assert requests(job)[0].clamp


def test_a_choice_that_contradicts_one_that_waits_is_refused(job: StoppedJob) -> None:
    set_json("--partition", "0", "--offset", "3", "--with-state", "clear")
    err = call("set", "flights", "--stream", INPUT, "--partition", "1", "--oldest", "--with-state", "keep", status=1)[1]
    assert "contradict" in err
    assert "--with-state clear (`local.dep.flights.0`, offset 3)" in err
    assert len(requests(job)) == 1
    found = set_json("--partition", "0", "--offset", "3", "--with-state", "keep")
    assert found["withState"] == "keep", "a newer one for the same partition takes the other's place"


def test_list_shows_all_and_what_they_mean_now(job: StoppedJob) -> None:
    manager = StartpointManager(job.objects, PATHS)
    assert json.loads(call("list", "flights", "--json")[0]) == []
    set_json("--partition", "0", "--offset", "3")
    set_json("--partition", "0", "--offset", "5", "--with-state", "clear")
    manager.write_startpoint(ssp(1), StartpointOldest(creation_timestamp=1))
    found = json.loads(call("list", "flights", "--json")[0])
    assert [(r["partition"], r["value"], r["status"], r["resolvesTo"], r["withState"]) for r in found] == [
        (0, "3", "superseded", 3, None),
        (0, "5", "pending", 5, "clear"),
        (1, None, "expired", None, None),
    ]
    job.run(saved(3, consumed_startpoints=tuple(request.uuid for request in requests(job)[:1])))
    found = json.loads(call("list", "flights", "--json")[0])
    assert [r["status"] for r in found] == ["taken", "pending", "expired"]
    call("list", "flights")


def test_list_warns_of_what_would_stop_the_start(job: StoppedJob) -> None:
    StartpointManager(job.objects, PATHS).write_startpoint(SSP("local", "gone", 0), StartpointOldest())
    out, err = call("list", "flights")
    assert "local.gone" in out
    assert "the job will not start" in err
    assert "not an input of the job" in err
    call("delete", "flights", "--stream", "local.gone", "--partition", "0")
    assert requests(job) == ()


def test_delete_takes_exactly_those_that_are_named(job: StoppedJob) -> None:
    set_json("--all-partitions", "--oldest")
    set_json("--partition", "0", "--offset", "3")
    set_json("--partition", "1", "--upcoming", "--task", "1")
    found = json.loads(call("delete", "flights", "--stream", INPUT, "--partition", "0", "--json")[0])
    assert [(r["partition"], r["kind"]) for r in found["deleted"]] == [(0, "oldest"), (0, "specific")]
    assert [(request.key.ssp, request.key.task) for request in requests(job)] == [
        (ssp(1), None),
        (ssp(1), "Partition 1"),
    ]
    err = call("delete", "flights", "--stream", INPUT, "--partition", "0", status=1)[1]
    assert "no such startpoint" in err
    assert "deleted" in call("delete", "flights", "--stream", INPUT, "--all-partitions", "--task", "1")[1]
    assert [request.key.task for request in requests(job)] == [None]
    call("delete", "flights", "--stream", INPUT, status=2)


def test_export_and_import_are_inverse(job: StoppedJob) -> None:
    set_json("--partition", "0", "--offset", "3")
    set_json("--partition", "0", "--offset", "5")
    set_json("--partition", "1", "--timestamp", "1370044800000", "--task", "1", "--with-state", "clear")
    out, err = call("export", "flights")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [json.loads(line["key"]) for line in lines] == [
        [1, "samza-startpoint-v1", f"{INPUT}.0"],
        [1, "samza-startpoint-v1", f"{INPUT}.1.Partition 1"],
    ]
    value = json.loads(lines[0]["value"])
    assert (list(value), value["specificOffset"]) == (["@type", "creationTimestamp", "specificOffset"], "5")
    assert "withState" not in lines[1]["value"]
    assert "--with-state, --with-output, --clamp and --accept-state are left out" in err
    before = {(request.key, request.startpoint) for request in requests(job)[1:]}
    call("delete", "flights", "--stream", INPUT, "--all-partitions")
    call("delete", "flights", "--stream", INPUT, "--all-partitions", "--task", "1")
    call("import", "flights", "-", stdin=out)
    assert {(request.key, request.startpoint) for request in requests(job)} == before


def message(namespace: str, key: str, value: object) -> str:
    text = None if value is None else json.dumps(value)
    return json.dumps({"key": json.dumps([1, namespace, key]), "value": text})


def test_import_of_samzas_messages(job: StoppedJob) -> None:
    """The last one of a key counts, null deletes, a fan-out is its task's, other messages are passed over."""
    now = time.time_ns() // 1_000_000

    def specific(offset: int, created: int = now) -> dict[str, object]:
        return {"@type": "StartpointSpecific", "creationTimestamp": created, "specificOffset": str(offset)}

    fan_out = {"timestamp": now, "fanOuts": {f"{INPUT}.1": specific(6)}}
    text = "\n".join(
        [
            message("set-config", "job.name", {"a": 1}),
            message("samza-startpoint-v1", f"{INPUT}.0", specific(1)),
            message("samza-startpoint-v1", f"{INPUT}.0", specific(2)),
            message("samza-startpoint-v1", f"{INPUT}.1", specific(9)),
            message("samza-startpoint-v1", f"{INPUT}.1", None),
            message("samza-startpoint-v1-fan-out", "Partition 1", fan_out),
            message("samza-startpoint-v1", f"{INPUT}.1.Partition 1", specific(3, 1)),
        ]
    )
    found = json.loads(call("import", "flights", "-", "--json", stdin=text)[0])
    assert [(r["partition"], r["task"], r["value"]) for r in found["requests"]] == [
        (0, None, "2"),
        (1, "Partition 1", "6"),
    ]
    assert any("skipped: 1 message without" in note for note in found["notes"])
    assert any("skipped: 1 startpoint older" in note for note in found["notes"])
    assert "line 1" in call("import", "flights", "-", stdin='{"key":"x","value":null}', status=1)[1]
    call("import", "flights", "-", stdin=message("set-config", "a", {}), status=2)


def test_a_job_that_was_never_started_needs_its_application(job: StoppedJob, tmp_path: Path) -> None:
    name = "never"
    file = tmp_path / "never.py"
    file.write_text(APPLICATION.replace('("flights")', '("never")'), encoding="utf-8")
    arguments = ("set", name, "--stream", INPUT, "--partition", "1", "--offset", "5", "--with-state", "nearest")
    assert "--app" in call(*arguments, status=1)[1]
    found = json.loads(call(*arguments, "--app", f"{file}:app", "--json")[0])
    assert [(c["partition"], c["oldNext"], c["newNext"]) for c in found["changes"]] == [(0, None, 0), (1, None, 5)]
    assert (found["checkpoint"], found["withState"]) == (None, None)


def test_status_shows_what_waits_and_what_was_taken(job: StoppedJob) -> None:
    set_json("--partition", "0", "--offset", "3", "--with-state", "clear")
    (request,) = requests(job)

    def status() -> Any:
        result = CliRunner().invoke(app, ["status", "flights", "--json", "--no-wait"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    found = status()
    assert [(r["partition"], r["value"], r["withState"]) for r in found["startpoints"]] == [(0, "3", "clear")]
    assert found["takenStartpoints"] is None
    job.run(
        saved(3, (3, 7), kind_detail="start", ended=None, consumed_startpoints=(request.uuid,), parent=saved(2).id),
        saved(4, (10, 10)),
        run_id="run-b",
    )
    found = status()
    assert found["startpoints"] == [], "it is taken, whether it is deleted yet or not"
    (moved,) = found["takenStartpoints"]["moved"]
    assert (moved["before"], moved["beganAt"], moved["toReplay"], moved["replayed"]) == (4, 3, 1, 1)
    text = CliRunner().invoke(app, ["status", "flights", "--no-wait"])
    assert "1 of 1" in text.stdout


def test_a_damaged_one_is_shown_deleted_and_in_nobodys_way(job: StoppedJob) -> None:
    """Neither in that of a start (tests/unit/start/startpoints/test_startpoint_manager.py)."""
    path = PATHS.metadata("samza-startpoint-v1", f"{INPUT}.1/u")
    job.objects.put_if_absent(path, b'{"@type":"Newest","creationTimestamp":1}')
    asked = set_json("--partition", "0", "--offset", "3")
    assert any(f"in `{path}` is left out" in note for note in asked["notes"])
    for command in ("list", "status"):
        arguments = ["startpoint", "list", "flights"] if command == "list" else ["status", "flights", "--no-wait"]
        said = CliRunner().invoke(app, arguments)
        assert said.exit_code == 0, said.output
        assert f"warning: the startpoint in `{path}` is left out" in said.stderr
        assert f"penstock startpoint delete flights --stream {INPUT} --partition 1`" in said.stderr.replace(
            "JOB", "flights"
        )
        found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
        requests_found = found if command == "list" else found["startpoints"]
        assert [(r["partition"], r["status"]) for r in requests_found] == [(0, "pending"), (1, "unreadable")]
    assert "left out" in call("export", "flights")[1]
    call("delete", "flights", "--stream", INPUT, "--partition", "1")
    assert [r["status"] for r in json.loads(call("list", "flights", "--json")[0])] == ["pending"]


class Newest(StartpointOldest):
    """A kind of an application's own."""


@pytest.mark.parametrize("wrong", [Newest(), "oldest", None])
def test_a_position_of_another_kind_is_refused_before_anything_is_written(job: StoppedJob, wrong: Any) -> None:
    with open_job("flights") as found, pytest.raises(ConfigError, match=r"no start could read it\. Give one of"):
        set_startpoint(found, INPUT, wrong)
    assert requests(job) == ()


def test_a_message_of_samza_from_the_future_is_refused(job: StoppedJob) -> None:
    value = {"@type": "StartpointOldest", "creationTimestamp": 2**62}
    line = message("samza-startpoint-v1", f"{INPUT}.0", value)
    assert "in the future by the clock of this host" in call("import", "flights", "-", stdin=line, status=2)[1]
    assert requests(job) == ()


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1357035300000", 1_357_035_300_000),
        ("2013-01-01T10:15Z", 1_357_035_300_000),
        ("2013-01-01T12:15:00.5+02:00", 1_357_035_300_500),
        ("today", 1_763_424_000_000),
        ("yesterday", 1_763_337_600_000),
        ("2h ago", 1_763_467_200_000),
        ("90min ago", 1_763_469_000_000),
    ],
)
def test_times_as_people_write_them(text: str, time_ms: int) -> None:
    now_ms = int(datetime(2025, 11, 18, 14, tzinfo=UTC).timestamp() * 1000)
    assert time_of(text, now_ms) == time_ms


@pytest.mark.parametrize("text", ["tomorrow", "2013-01-01T10:15", "soon ago", "-1h ago", "99999999d ago"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="--timestamp"):
        time_of(text, 1_763_474_400_000)
