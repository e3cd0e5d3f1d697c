"""`penstock replay` and `penstock shadow`, as docs/replay.md and docs/shadow.md show them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock.cli.shared.application import load_application
from penstock.config import load_config
from penstock.objects.open import open_job_root
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.cli import call, own_home
from tests.support.tools.pages import blocks
from tests.support.tools.places import ROOT

JOB = """
import penstock as ps

app = ps.StreamApplication("flights")


def add(total, trip):
    return {"plane": trip["plane"], "miles": total["miles"] + trip["miles"]}


trips = app.input("local.trips").partition_by(lambda trip: trip["plane"])
trips.reduce(add, id="total").send_to(app.output("local.totals"))
"""
TIME = 1_700_000_000_000


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Job `flights`, which has made a checkpoint after each two messages, and two files of an application."""
    made = own_home(tmp_path, monkeypatch)
    Path("job.py").write_text(JOB, "utf-8")
    Path("changed.py").write_text(JOB.replace('trip["miles"]}', 'max(0, trip["miles"])}'), "utf-8")
    call("stream", "create", "trips", "--partitions", "1")
    for two in ([500, 219], [-200, 90]):
        lines = (json.dumps({"plane": "N14228", "miles": miles, "time": TIME}) for miles in two)
        Path("in.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        call("stream", "publish", "trips", "--file", "in.jsonl", "--timestamp", "time")
        run()
    return made


def run() -> None:
    config, app = load_config(overrides={"job.name": "flights"}), load_application("job.py:app").app
    with closing(open_job_root(config.job)) as objects:
        driver = InProcessDriver(app.graph(), config, objects, {}, containers=1, until_latest=True, close=False)
        with closing(driver):
            driver.loop.run()


def typed(command: str, *options: str, status: int = 0) -> tuple[str, str]:
    return call(*shlex.split(command)[1:], *options, status=status)


def test_the_row_of_the_page() -> None:
    (command, *_), (shown, *_) = blocks(page("replay.md"), "sh"), blocks(page("replay.md"), "text")
    printed, said = typed(command)
    assert printed + said.splitlines()[-1] == shown.strip()


def test_the_debugger_of_the_page_stops_in_the_applications_code() -> None:
    _, command = blocks(page("replay.md"), "sh")
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *shlex.split(command)[1:]],
        input="n\np trip['miles']\nc\np total['miles'] if 'total' in dir() else 0\nq\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = done.stdout + done.stderr
    assert "-200" in done.stdout, told
    assert "operator `total`" in done.stderr, told
    assert "the replay was left" in done.stderr, told
    assert done.returncode == 1


def test_steps_as_json() -> None:
    printed, _ = typed("penstock replay flights job.py:app --key N14228", "--json")
    *steps, end = map(json.loads, printed.splitlines())
    assert [step["messages"][0]["value"]["miles"] for step in steps] == [500, 219, -200, 90]
    assert [step["changes"][0]["after"]["miles"] for step in steps] == [500, 719, 519, 609]
    assert end == {"messages": 4, "notTheSameTwice": []}


@pytest.mark.parametrize(
    ("options", "said", "status"),
    [
        ("", "give one of --key, --input and --output", 2),
        ("--key N1 --input local.trips:0:1", "give one of", 2),
        ("--input trips:0", "is not a message: expected STREAM:PARTITION:OFFSET", 2),
        ("--output local.totals:x:1", "is not a message", 2),
        ("--input local.trips:0:1 --from latest", "--from and --to go with --key", 2),
        ("--key N99", "no such message was read behind checkpoint", 1),
        ("--key N14228 --from before-deploy", "is not a version", 2),
        ("--input local.trips:7:1", "has the partitions 0 to 0", 1),
    ],
)
def test_a_call_that_is_refused(options: str, said: str, status: int) -> None:
    _, error = call("replay", "flights", "job.py:app", *shlex.split(options), status=status)
    assert said in error


def test_the_comparison_of_the_page() -> None:
    (command, *_) = blocks(page("shadow.md"), "sh")
    printed, _ = typed(command, status=1)
    assert re.search(r"local\.totals +2 +2 +1", printed), printed
    assert "local.trips.0 2" in printed, "the message that made the first difference"
    found = json.loads(typed(command, "--json", status=1)[0])
    assert found["stores"] == [{"store": "total", "before": 1, "after": 1, "differing": 1}]
    first = found["examples"][0]
    assert (first["key"], first["before"]["miles"], first["after"]["miles"]) == ("N14228", 519, 719)
    typed(command.replace("changed.py", "job.py"))  # nothing differs


def test_a_comparison_that_is_refused() -> None:
    for option in ("--from", "--to"):
        _, error = call("shadow", "flights", "changed.py:app", "--against", "job.py:app", option, "latest-9", status=1)
        assert "not retained" in error
    _, error = call("replay", "nobody", "job.py:app", "--key", "N1", status=1)
    assert "there is no job `nobody`" in error


def test_the_shadow_of_the_page_holds_back_what_it_sends() -> None:
    fork, _ = blocks(page("shadow.md").split("## A shadow on Spark")[1], "sh")[0].splitlines()
    typed(fork)
    options = ("-c", "job.name=what-if", "-c", "job.shadow.enabled=true")
    call("stream", "publish", "trips", "--file", "in.jsonl")
    config, app = load_config(assignments=options[1::2]), load_application("changed.py:app").app
    with closing(open_job_root(config.job)) as objects:
        driver = InProcessDriver(app.graph(), config, objects, {}, containers=1, until_latest=True, close=False)
        with closing(driver):
            driver.loop.run()
    held = call("stream", "tail", "totals", "--from-beginning", *options)[0]
    assert [json.loads(line.split("\t")[3])["miles"] for line in held.splitlines()] == [609, 699]
    assert len(call("stream", "tail", "totals", "--from-beginning")[0].splitlines()) == 4
    assert "what-if-1" in call("status", "what-if", *options)[0]
