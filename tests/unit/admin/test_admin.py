"""`penstock.admin` as a notebook uses it, on jobs that were made without Spark; its questions to systems."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import admin
from penstock.admin.questions import Questions, answer_or_problem
from penstock.base.retry import check_interrupt
from penstock.errors import NotFoundError, SystemAwayError
from penstock.system.partitioner import partition_of
from tests.support.jobs.example_job import ExampleJob, flights
from tests.support.processes.python import run_python
from tests.support.stores.state_job import JOB, StateJob
from tests.support.stores.stopped_job import STREAM, StoppedJob, saved
from tests.support.tools.places import ROOT

PAGE = (ROOT / "docs" / "admin.md").read_text(encoding="utf-8")
TASKS = 3


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def run_section(heading: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run the examples of a section of the page, after its first example with these values."""
    first = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found: dict[str, Any] = {}
    exec(compile(first, "docs/admin.md", "exec"), found)
    found |= namespace
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(compile(block, "docs/admin.md", "exec"), found)
    return found


@pytest.fixture
def stopped(home: Path) -> StoppedJob:
    job = StoppedJob(home)
    job.run(saved(1, (1, 2), ended=None), saved(2, (2, 5), ended=None), saved(3))
    return job


def names(home: Path) -> dict[str, Any]:
    return {"ROOT": str(home / "jobs"), "INPUT": ps.SystemStream("local", STREAM)}


def test_looking(stopped: StoppedJob, home: Path) -> None:
    found = run_section("Looking", names(home))
    assert found["status"].status == "not running"
    assert found["lag"] == {f"local.{STREAM}": (10 - 4) + (10 - 7)}
    assert found["retained"] == [str(record.id) for record in stopped.log.restorable]
    assert found["last"].id == str(stopped.last.id)
    assert found["positions"] == {0: {f"local.{STREAM}.0": 4}, 1: {f"local.{STREAM}.1": 7}}


def test_another_number_of_tasks(home: Path, tmp_path: Path) -> None:
    ExampleJob(home, tmp_path / "kept")

    def content(job: admin.FoundJob) -> dict[Any, Any]:
        with admin.open_state(job, "miles", "latest") as store:
            return {entry.key: entry.value for entry in store.scan()}

    with admin.open_job("flights") as job:
        before = content(job)
    found = run_section("Another number of tasks", {"APP": flights(), "ROOT": str(home / "jobs")})
    assert (found["facts"].before, found["facts"].after, found["facts"].problems) == (2, 4, ())
    with admin.open_job("flights") as job:
        assert admin.read_checkpoint(job).id == found["moved"].written
        assert len(admin.read_checkpoint(job).tasks) == 4
        assert content(job) == before != {}


def test_changing(stopped: StoppedJob, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = stopped.last
    found = run_section("Changing", names(home))
    assert "count twice" in capsys.readouterr().out
    assert [(each.old_next, each.new_next) for each in found["written"].changes] == [(4, 0)]
    assert stopped.last.parent == before.id
    assert found["preview"].dry_run
    assert [each.partition for each in found["preview"].requests] == [0, 1]
    assert [each.partition for each in found["asked"].requests] == [0]
    assert found["waiting"] == found["asked"].requests
    assert [each.uuid for each in found["deleted"].deleted] == [each.uuid for each in found["waiting"]]


def test_streams(stopped: StoppedJob, home: Path) -> None:
    found = run_section("Streams", names(home))
    assert (found["facts"].partition_count, found["facts"].messages) == (2, 20)
    assert found["use"].readers == ("flights-1",)
    with pytest.raises(ps.ConfigError, match="is read by job flights-1"):
        admin.delete_stream(found["stream"])


def test_state(home: Path) -> None:
    expected = {f"k{n}": {"n": n} for n in range(20)}
    with closing(StateJob(home, tasks=TASKS)) as job:
        changes: dict[int, dict[bytes, bytes | None]] = {task: {} for task in range(TASKS)}
        for key, value in expected.items():
            changes[partition_of(key.encode(), TASKS)][key.encode()] = ps.Json().to_bytes(value)
        job.commit(changes)
    found = run_section("State", {"JOB": JOB, "STORE": "first", "ROOT": str(home / "jobs")})
    assert found["totals"] == expected
    assert [(entry.key, entry.value) for entry in found["one"]] == [next(iter(found["totals"].items()))]
    assert {version.store for version in found["held"].versions} == {"first", "second"}
    assert found["agrees"]
    assert found["garbage"].dry_run


def test_a_serde_that_is_not_penstocks_needs_the_application(home: Path) -> None:
    with closing(StateJob(home)) as job:
        job.commit({})
    with (
        admin.open_job(JOB) as found,
        pytest.raises(ps.ConfigError, match=r"flights\.town.*application"),
        admin.open_state(found, "second"),
    ):
        pass


def test_the_page_names_every_function() -> None:
    table = PAGE.split("## All functions")[1]
    functions = {name for name in getattr(admin, "__all__", ()) if name[0].islower()}
    assert functions - set(re.findall(r"`(\w+)`", table)) == set()


def test_it_needs_neither_spark_nor_what_prints() -> None:
    code = (
        "import sys; from penstock import admin; [getattr(admin, name) for name in admin.__all__]; "
        "print([m for m in ('pyspark', 'py4j', 'rich', 'typer', 'click') if m in sys.modules])"
    )
    done = run_python("-c", code)
    assert done.stdout.strip() == "[]"


def test_one_that_hangs_delays_no_other() -> None:
    questions, hanging, released = Questions(within_s=0.2), threading.Event(), threading.Event()

    def hang() -> int:
        hanging.set()
        released.wait()
        return 0

    away = [questions.put("east", hang) for _ in range(5)]
    there = [questions.put("local", partial(int, number)) for number in range(5)]
    began = time.monotonic()
    questions.await_answers()
    assert time.monotonic() - began < 5
    released.set()
    assert hanging.is_set()
    assert [answer_or_problem(each) for each in there] == list(range(5))
    for each in away:
        with pytest.raises(SystemAwayError, match=r"the system `east` did not answer within 0\.2 s"):
            each.result()


def test_a_question_that_waits_for_nobody_ends() -> None:
    questions, ended = Questions(within_s=0.05), threading.Event()

    def ask() -> int:
        try:
            while True:
                check_interrupt("the ends could not be read")
                time.sleep(0.01)
        finally:
            ended.set()

    answer = questions.put("east", ask)
    questions.await_answers()
    assert ended.wait(30)
    assert isinstance(answer_or_problem(answer), SystemAwayError)


def test_more_questions_than_threads() -> None:
    questions = Questions()
    answers = [questions.put("local", partial(int, number)) for number in range(200)]
    questions.await_answers()
    assert [each.result() for each in answers] == list(range(200))


def test_errors_are_the_answers_of_their_own_questions() -> None:
    def ask() -> int:
        raise NotFoundError("the stream `local.a` does not exist")

    questions = Questions(within_s=None)
    failed, wrong, good = questions.put("local", ask), questions.put("local", lambda: 1 // 0), questions.put("a", int)
    questions.await_answers()
    assert str(answer_or_problem(failed)) == "the stream `local.a` does not exist"
    assert answer_or_problem(good) == 0
    with pytest.raises(ZeroDivisionError):
        answer_or_problem(wrong)
