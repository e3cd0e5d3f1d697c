"""TestRunner.push: versions of pushed tables in tests of applications."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import penstock as ps
from penstock.testing import TestRunner


class Seats(ps.StreamTask):
    """The task's view of a plane, and of all planes."""

    def init(self, context: Any) -> None:
        self.planes, self.names = context.store("planes"), context.store("names")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if envelope.value == "write":
            self.planes.put("N1", 1)
        own = self.planes.get(envelope.key)
        collector.emit(key=envelope.key, value=[own, list(self.planes), [self.names[key] for key in self.names]])


class Own(ps.StreamTask):
    """The task's view of a plane."""

    def init(self, context: Any) -> None:
        self.planes = context.store("planes")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=envelope.key, value=self.planes.get(envelope.key))


@pytest.fixture
def runner() -> Iterator[TestRunner]:
    app = ps.StreamApplication("seats")
    app.store("planes", value=ps.Integer(), pushed=ps.PushedTable("/nowhere/planes", "tail", "seats"))
    names = ps.PushedTable("/nowhere/names", ("kind", "code"), "name", broadcast=True)
    app.store("names", key=ps.Tuple(ps.String(), ps.Integer()), value=ps.String(), pushed=names)
    app.input("m.in").process(Seats, stores=["planes", "names"]).send_to(app.output("m.out"))
    with closing(TestRunner(app)) as runner:
        yield runner


def found(runner: TestRunner) -> list[Any]:
    return [message.value for message in runner.output("m.out")]


def planes(**seats: int) -> list[dict[str, Any]]:
    return [{"tail": tail, "seats": number} for tail, number in seats.items()]


NAMES = [{"kind": "airline", "code": 2, "name": "Delta"}, {"kind": "airline", "code": 1, "name": "United"}]


def test_each_run_reads_the_version_that_was_pushed_last(runner: TestRunner) -> None:
    runner.push("planes", planes(N1=100, N2=200)).push("names", NAMES)
    runner.input("m.in", [("N1", None), ("N2", None), ("N3", None)]).run()
    assert sorted(each[0] or 0 for each in found(runner)) == [0, 100, 200]
    assert all(each[2] == ["United", "Delta"] for each in found(runner))
    assert runner.store("planes") == {"N1": 100, "N2": 200}
    runner.push("planes", planes(N1=1)).push("planes", planes(N1=101, N4=400))
    runner.input("m.in", [("N1", None), ("N2", None)]).run(batch_messages=1)
    assert sorted(each[0] or 0 for each in found(runner)) == [0, 0, 100, 101, 200]
    assert runner.store("planes") == {"N1": 101, "N4": 400}


def test_a_version_lasts_over_a_crash_and_one_may_be_pushed_before_the_restore(runner: TestRunner) -> None:
    runner.push("planes", planes(N1=100)).push("names", []).input("m.in", [("N1", None)]).run().crash()
    runner.push("planes", planes(N1=101)).restore().run()
    assert found(runner) == [[100, ["N1"], []], [101, ["N1"], []]]


def test_a_table_without_a_version_is_named(runner: TestRunner) -> None:
    runner.push("planes", planes(N1=100)).input("m.in", [("N1", None)])
    with pytest.raises(ps.ConfigError, match=r"table `names` has no version: call push\('names', rows\)"):
        runner.run()
    runner.push("names", NAMES).run()
    assert len(found(runner)) == 1


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("table", "rows", "reason"),
    [
        ("seats", [], "`seats` is not a pushed table"),
        ("planes", [{"tail": "N1", "seats": 1}, {"tail": "N1", "seats": 2}], "two rows have the key 'N1'"),
        ("planes", [{"tail": None, "seats": 1}], "1 row has no key: column `tail` is null"),
        ("planes", [{"tail": "N1"}], "its rows have no column `seats`"),
        (
            "planes",
            [{"tail": 7, "seats": 1}],
            "the key 7, from column `tail`, does not fit the serde `string`: it is of type int. Declare",
        ),
        ("planes", [{"tail": "N1", "seats": "many"}], "column `seats` does not fit the serde"),
        ("planes", [{"tail": "N1", "seats": 1}, {"tail": "N2", "seats": "many"}], "column `seats` cannot be a column"),
        ("planes", [{"tail": object(), "seats": 1}], "column `tail` cannot be a column of a file"),
        ("planes", [{"tail": "N1", "seats": 1 << 70}], "column `seats` cannot be a column of a file"),
    ],
)
def test_what_is_no_version_is_refused(runner: TestRunner, table: str, rows: list[Any], reason: str) -> None:
    with pytest.raises(ps.ConfigError, match=reason):
        runner.push(table, rows)


def test_a_version_must_pass_the_tables_check() -> None:
    seen: list[ps.TableCandidate] = []

    def check(version: ps.TableCandidate) -> bool:
        seen.append(version)
        if version.rows == 3:
            raise ValueError("three are too many")
        return version.rows > 0

    app = ps.StreamApplication("seats")
    app.store("planes", value=ps.Integer(), pushed=ps.PushedTable("/nowhere", "tail", "seats", check=check))
    app.input("m.in").process(Own, stores=["planes"]).send_to(app.output("m.out"))
    with closing(TestRunner(app)) as runner:
        runner.push("planes", planes(N1=100)).input("m.in", [("N1", None)])
        for rows, reason in ([], "returned False, with 0 rows"), (planes(A=1, B=2, C=3), "three are too many"):
            with pytest.raises(ps.ConfigError, match=f"a version of table `planes`: its check .*{reason}"):
                runner.push("planes", rows)
        runner.run()
        assert found(runner) == [100], "the version before stays"
    assert [(each.table, each.rows, each.previous_rows) for each in seen] == [
        ("planes", 1, None),
        ("planes", 0, 1),
        ("planes", 3, 1),
    ]


def test_a_task_cannot_write_a_pushed_table(runner: TestRunner) -> None:
    runner.push("planes", planes(N1=100)).push("names", NAMES).input("m.in", [("N1", "write")])
    with pytest.raises(ps.UserCodeError, match="`planes` is"):
        runner.run()
