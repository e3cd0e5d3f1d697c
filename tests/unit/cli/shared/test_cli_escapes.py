"""Text of others that would steer the terminal of the operator who looks at it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admin.stream.found import Message
from penstock.base.wording import escaped
from penstock.cli.shared.errors import say
from penstock.cli.shared.output import print_facts, print_grid
from penstock.cli.stream import _text_line
from penstock.facts import FactTable

pytestmark = pytest.mark.attack

TITLE, CLEAR, RIGHT_TO_LEFT = "\x1b]0;mine\x07", "\x9b2J", "\u202egpj.exe"
ATTACK = f"a{TITLE}b{CLEAR}c\x7f\r{RIGHT_TO_LEFT}\ud800"


def steers(shown: str) -> list[str]:
    return [char for char in shown if char not in "\n\t" and (unicodedata.category(char) == "Cc" or char == "\u202e")]


@given(st.text(st.characters(), max_size=50))
def test_no_text_steers(text: str) -> None:
    shown = escaped(text)
    assert not steers(shown)
    shown.encode()
    assert escaped(text.replace("\n", "").replace("\t", "")).isascii() or not text.isascii()


@given(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=50))
def test_other_text_stays(text: str) -> None:
    assert escaped(f"{text} \n\t\N{ZERO WIDTH JOINER}") == f"{text} \n\t\N{ZERO WIDTH JOINER}"


def test_tables_facts_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    print_grid(FactTable.of(ATTACK, "name", [[ATTACK]]).grid())
    print_facts([(ATTACK, ATTACK)])
    say(ATTACK)
    shown = capsys.readouterr()
    assert not steers(shown.out + shown.err)
    assert "\\x1b]0;mine\\x07" in shown.out
    assert "\\x1b]0;mine\\x07" in shown.err


def test_messages_of_a_stream() -> None:
    data = ATTACK[:-1].encode()
    name = ATTACK[:-1] + "\n\t"
    shown = _text_line(Message(0, 1, 2, data, data, ((name, data),), name))
    assert not steers(shown)
    assert shown.count("\n") == 1
    assert shown.count("\t") == 4
