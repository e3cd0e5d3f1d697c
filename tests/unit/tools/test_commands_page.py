"""Pages that are made of the code: commands, and the table of SECURITY.md."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from tests.support.tools.pages import blocks
from tests.support.tools.places import ROOT
from tools.commands_page import EXAMPLES, commands, markdown

COMMANDS = dict(commands())


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert page == markdown(), "run `python -m tools.commands_page > docs/commands.md`"


def test_each_command_has_an_example() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_takes_its_example(name: str) -> None:
    program, *words = shlex.split(EXAMPLES[name].partition(" > ")[0])
    named = name.split()
    assert (program, words[: len(named)]) == ("penstock", named)
    assert COMMANDS[name].make_context(name, words[len(named) :]).params


def calls() -> list[str]:
    """The calls in shell blocks of all pages, each once. Those of the wing on the page about wings are tested with it
    (`tests/unit/test_wing.py`)."""
    texts = [file.read_text("utf-8") for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]]
    shells = [each for text in texts for language in ("sh", "bash", "console") for each in blocks(text, language)]
    call = re.compile(r"(?:^|[|] |[$] )penstock ([a-z].*?)(?= [0-9]?[|>&]| *$)", re.MULTILINE)
    found = {each for block in shells for each in call.findall(block.replace("\\\n", " "))}
    return sorted(each for each in found if not each.startswith("audit runs "))


@pytest.mark.parametrize("call", calls())
def test_the_command_takes_the_call_of_a_page(call: str) -> None:
    words = shlex.split(call, comments=True)
    name = next(name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS)
    COMMANDS[name].make_context(name, words[len(name.split()) :])


def test_a_call_that_the_command_does_not_take_is_found() -> None:
    with pytest.raises(typer.BadParameter):
        COMMANDS["stream create"].make_context("stream create", ["flights", "--partitions", "many"])


def rows() -> list[list[str]]:
    text = (ROOT / "SECURITY.md").read_text("utf-8").split("## Bytes from outside")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_each_kind_of_bytes_has_a_reader_a_budget_and_a_test_that_exists() -> None:
    head, _, *found = rows()
    assert head == ["bytes", "who may write them", "what reads them", "budget", "tests"]
    assert len(found) >= 20
    for row in found:
        assert len(row) == len(head), row
        assert all(row), row
        tests = re.findall(r"`([^`]+)`", row[-1])
        assert tests, row
        for test in tests:
            assert re.fullmatch(r"tests/\S+/test_\w+\.py", test), test
            assert (ROOT / test).is_file(), test
        for reader in re.findall(r"`(penstock/[^`]+)`", row[2]):
            assert (ROOT / reader).exists(), reader
