"""Regular expressions on texts of messages: they mean what they mean to `re`, and take no time that explodes."""

from __future__ import annotations

import re
import time
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.schemas.patterns import _in_one_pass, longest, search_of

pytestmark = pytest.mark.attack

ATOMS = [
    "a",
    "b",
    ".",
    r"\d",
    r"\w",
    r"\S",
    r"\s",
    "[ab]",
    "[^a]",
    r"[\w.-]",
    "[]a]",
    "[^]b]",
    "é",
    r"\u00e9",
    r"\.",
    "[[a]",
]
ENDS = ["", "*", "+", "?", "*?", "{2}", "{1,2}", "{,2}", "{2,}"]
TEXTS = st.text(alphabet="ab.é1-_ \n]\x1c\u2003", max_size=8)


@st.composite
def patterns(draw: st.DrawFn, depth: int = 2) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        atom = draw(st.sampled_from(ATOMS))
        if depth and draw(st.booleans()):
            begin = draw(st.sampled_from(("(", "(?:", "(?P<n>" if depth == 1 else "(")))
            atom = f"{begin}{draw(patterns(depth - 1))})"
        parts.append(atom + draw(st.sampled_from(ENDS)))
    body = "".join(parts)
    if draw(st.booleans()):
        body = f"{body}|{draw(st.sampled_from(ATOMS))}"
    return draw(st.sampled_from(("", "^"))) + body + draw(st.sampled_from(("", "$", r"\Z")))


@given(patterns(), TEXTS)
def test_both_engines_find_the_same(pattern: str, text: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = re.search(pattern, text) is not None
    except re.error:  # a group's name twice
        with pytest.raises(ValueError, match="no regular expression"):
            search_of(pattern)
        return
    assert search_of(pattern)(text) == expected
    one_pass = _in_one_pass(pattern)
    assert one_pass is not None
    assert one_pass(text) == expected


EXPLOSIVE = [
    "^(a+)+$",
    "(a|aa)+$",
    "^(a|a)*b",
    "^([a-z]+-?)+x",
    "a+b",
    "a*a*a*b",
    "^(.*a){12}$",
    "(?:a?){40}b",
    "a?" * 30 + "a" * 30 + "b",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    r"^(\w+\s?)*$",
]


@pytest.mark.parametrize("pattern", EXPLOSIVE)
@pytest.mark.parametrize("size", [30, 300, 100_000])
def test_no_text_takes_long(pattern: str, size: int) -> None:
    search = search_of(pattern)
    began = time.process_time()
    search("a" * size + "!")
    assert time.process_time() - began < 2


@pytest.mark.parametrize("pattern", [r"^(?!x)(a+)+$", r"(a|b)+\1", r"^(?=a)(a|aa)+$"])
def test_what_may_take_any_time_is_refused_with_its_schema(pattern: str) -> None:
    nested: dict[str, Any] = {"properties": {"a": {"patternProperties": {pattern: {}}}}}
    schemas: list[dict[str, Any]] = [{"pattern": pattern}, nested]
    for schema in schemas:
        with pytest.raises(ps.ConfigError, match=r"has the pattern .*: it repeats a group"):
            ps.JsonSchema(schema)


def test_a_text_that_is_too_long_for_a_lookahead_is_one_failed_message() -> None:
    serde = ps.JsonSchema({"pattern": r"^(?=.*[A-Z])(?=.*\d).{8,}$"})
    assert serde.from_bytes(b'"Passw0rd"') == "Passw0rd"
    with pytest.raises(ValueError, match="a text of 9,999 characters is too long for"):
        serde.from_bytes(b'"%b"' % (b"a" * 9999))


def test_usual_expressions_are_those_of_python() -> None:
    assert longest("^[A-Z]{2}[0-9]+$") > 1_000_000
    assert longest("[a-z]+@") > 1000
    serde = ps.JsonSchema({"patternProperties": {"^a(-a)*$": {"type": "integer"}}, "additionalProperties": False})
    assert serde.from_bytes(b'{"a":1,"a-a":2}') == {"a": 1, "a-a": 2}
    for wrong in (b'{"a":"1"}', b'{"b":1}'):
        with pytest.raises(ValueError, match=r"is not of type|Additional properties are not allowed"):
            serde.from_bytes(wrong)
