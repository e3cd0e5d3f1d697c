"""Tables for people: what goes where the terminal is narrow, and what an empty list says."""

from __future__ import annotations

import pytest

from penstock.cli.shared import output
from penstock.cli.shared.errors import report_failed_message
from penstock.cli.shared.output import fitting, print_facts, print_grid
from penstock.errors import FailedMessage
from penstock.facts import FactTable

ID = "1795307450279-472083"
COLUMNS = ("id", "kind", "batch time", "run", "stores")
HEADINGS = "id, kind, batch time?3, run?2, stores?1"


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


ROW = (ID, "commit", "2026-11-22T00:30:49.007Z", "30056d39df17", "aircraft, airports, carriers")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_ids_are_never_broken_and_no_line_is_too_long(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_WIDE", width)
    print_grid(FactTable.of("Checkpoints of a job with a long name", HEADINGS, [ROW]).grid())
    found = lines(capsys)
    assert found[0] == "Checkpoints of a job with a long name"
    assert sum(ID in line for line in found) == 1
    assert all(len(line) <= width for line in found if not line.startswith("("))
    assert ("30056d39df17" in "".join(found)) is (width >= 80)
    assert found[-1].startswith("(a wider terminal, or --json, shows: ") is (width <= 100)


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "several words " * 20
    for columns, widest in (("60", 60), ("150", 150), ("", 200), ("many", 200)):
        monkeypatch.setenv("COLUMNS", columns)
        print_grid(FactTable.of("", "id, text", [(ID, text)]).grid())
        assert widest - 15 < max(map(len, lines(capsys))) <= widest


def test_less_important_columns_go_first() -> None:
    first_to_go = ["stores", "run", "batch time"]

    def shown(width: int) -> list[str]:
        return [COLUMNS[place] for place in fitting(COLUMNS, [ROW], width, first_to_go)]

    assert shown(120) == ["id", "kind", "batch time", "run", "stores"]
    assert shown(80) == ["id", "kind", "batch time", "run"]
    assert shown(65) == ["id", "kind", "batch time"]
    assert shown(40) == shown(1) == ["id", "kind"]


def test_what_does_not_fit_is_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output, "_WIDE", 20)
    print_grid(FactTable.of("", "id, parent", [(ID, ID)]).grid())
    assert sum(line.count(ID) for line in lines(capsys)) == 2


def test_titles_are_not_wrapped_to_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    title = "Startpoints that wait for the next start"
    print_grid(FactTable.of(title, "n", [(1,)]).grid())
    assert lines(capsys)[0] == title


def test_an_empty_list_says_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_grid(FactTable.of("Startpoints that wait for the next start", "stream, partition", []).grid())
    assert lines(capsys) == ["Startpoints that wait for the next start", "none"]


def test_long_texts_are_broken_so_that_everything_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_WIDE", 60)
    text = "x" * 150
    print_grid(FactTable.of("", "id, marker", [(ID, text)]).grid())
    found = lines(capsys)
    assert sum(line.count("x") for line in found) == 150
    assert max(map(len, found)) <= 60
    print_facts([("last checkpoint", ID)])
    assert lines(capsys) == [f"last checkpoint  {ID}"]


def test_a_message_of_a_side_input_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    failed = FailedMessage("local.planes", 0, 7, "N1", "", "KeyError: 'seats'", "", store="planes")
    report_failed_message(failed, "17-1")
    shown = " ".join(capsys.readouterr().err.split())
    assert "in the side inputs of store `planes`, at stream `local.planes` partition 0 offset 7 key N1" in shown
    assert "Side inputs have no dead letters: let the processor of store `planes` return nothing" in shown
    assert "task.dead.letter.stream" not in shown
