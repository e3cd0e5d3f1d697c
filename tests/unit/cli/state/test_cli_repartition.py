"""`penstock state repartition`: the plan it shows, and what it refuses. How state moves is tested in `repartition`."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.main import app as cli
from penstock.cli.state import _rules
from penstock.config.load import load_config
from penstock.objects.file import FileObjectStore
from penstock.system.local import LocalSystem
from penstock.testing.in_process import InProcessDriver

APPLICATION = """
import penstock as ps


class Count(ps.StreamTask):
    def init(self, context):
        self.counts = context.store("counts")
        self.days = context.store("days")

    def process(self, envelope, collector, coordinator):
        self.counts[envelope.key] = self.counts.get(envelope.key, 0) + 1
        self.days["mon", envelope.key] = 1


app = ps.StreamApplication("counting")
app.store("counts", value=ps.Long())
app.store("days", key=ps.Json(), value=ps.Long())
app.input("local.events").partition_by(lambda event: event["k"]).process(Count, stores=["counts", "days"])


def key_of(key, value):
    return key[1]
"""


class Job:
    """A job that has stopped."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "app.py"
        self.file.write_text(APPLICATION)
        self.keys: dict[str, object] = {
            "job.root": str(folder / "jobs"),
            "job.logged.store.base.dir": str(folder / "state"),
            "systems.local.path": str(folder / "local"),
        }
        system = LocalSystem("local", str(folder / "local"))
        system.admin().create_stream("events", 2)
        for number in range(20):
            value = json.dumps({"k": f"key-{number}"}).encode()
            system.writer(None).append(ps.SystemStreamPartition("local", "events", number % 2), [(0, None, value)])
        names: dict[str, Any] = {}
        exec(compile(APPLICATION, "app.py", "exec"), names)
        graph = names["app"].graph()
        config = load_config(overrides={"job.name": "counting", **self.keys}, environ={})
        objects = FileObjectStore(folder / "jobs")
        driver = InProcessDriver(graph, config, objects, {"local": system}, until_latest=True)
        driver.loop.run()
        driver.close()

    def call(self, *words: str) -> Any:
        given = [word for key, value in self.keys.items() for word in ("-c", f"{key}={value}")]
        return CliRunner().invoke(cli, ["state", "repartition", f"{self.file}:app", *words, *given])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_plan_says_what_moves_and_what_is_needed(job: Job) -> None:
    found = job.call("--tasks", "8", "--dry-run", "--json")
    assert found.exit_code == 0, found.output
    facts = json.loads(found.stdout)
    assert (facts["before"], facts["after"], facts["written"]) == (2, 8, None)
    hows = {each["store"]: each["how"] for each in facts["stores"]}
    assert hows["counts"] == "to the tasks that own their keys"
    assert hows["days"].startswith("not known: its keys are `json`")
    (problem,) = facts["problems"]
    assert problem.startswith("store `days`: its keys are")
    assert "`job.intermediate.stream.partitions: 8`" in facts["notes"][-1]
    shown = job.call("--tasks", "8", "--dry-run")
    assert "2 -> 8" in shown.output
    assert "--rule days=RULE: key, first, stay, copy, empty and a function" in " ".join(shown.output.split())


def test_a_rule_may_be_a_function(job: Job) -> None:
    found = job.call("--tasks", "8", "--dry-run", "--json", "--rule", f"days={job.file}:key_of")
    facts = json.loads(found.stdout)
    assert facts["problems"] == []
    assert facts["stores"][1]["how"] == "to the tasks that own their keys, by the function"


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "8", "--yes"], "store `days`"),
        (["--tasks", "8"], "add --yes"),
        (["--tasks", "1", "--dry-run"], "at least 2 tasks"),
        (["--tasks", "2", "--dry-run"], "has 2 tasks already"),
        (["--tasks", "8", "--dry-run", "--rule", "days"], "expected STORE=RULE"),
        (["--tasks", "8", "--dry-run", "--rule", "days=empty", "--rule", "days=stay"], "has a rule already"),
        (["--tasks", "8", "--dry-run", "--rule", "days=some"], "a function is named"),
        (["--tasks", "8", "--dry-run", "--yes"], "asks for no confirmation"),
    ],
)
def test_refusals(job: Job, words: list[str], said: str) -> None:
    if "--yes" not in words and "--dry-run" not in words:
        words = [*words, "--rule", "days=empty"]
    found = job.call(*words)
    assert found.exit_code != 0
    assert said in " ".join(found.output.split())


def test_a_rule_of_another_file_needs_no_file_where_it_runs(tmp_path: Path) -> None:
    (tmp_path / "others.py").write_text("OFFSET = 1\n\n\ndef key_of(key, value):\n    return key[OFFSET]\n")
    (rule,) = _rules([f"days={tmp_path / 'others.py'}:key_of"]).values()
    assert callable(rule)
    data = cloudpickle.dumps(rule)
    del sys.modules[rule.__module__]
    assert pickle.loads(data)(["mon", "N1"], 1) == "N1"
