"""Files of properties, as Samza has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import keys as config_keys
from penstock.config.sources import PropertiesError, parse_properties


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=b", {"a": "b"}),
        ("  a : b ", {"a": "b "}),
        ("a b c", {"a": "b c"}),
        ("a = = b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("# x\n! y \\\na=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a\\=\\:\\ b=c", {"a=: b": "c"}),
        ("a=b\\\n  # c", {"a": "b# c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\\\\\n c", {"a": "b\\c"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("a=\\\n\\\n  b", {"a": "b"}),
        ("\\\n\na=b", {"": "", "a": "b"}),
        ("a=b\\", {"a": "b"}),
        ("a=\\u00e9\\t\\q\\ud83d\\ude00", {"a": "é\tq😀"}),
        ("=b", {"": "b"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x\x85y\u2028z", {"a": "x\x85y\u2028z"}),
        ("", {}),
    ],
)
def test_properties(text: str, entries: dict[str, str]) -> None:
    assert {entry.key: entry.value for entry in parse_properties(text)} == entries


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "a=\\ud83d", "\\u"])
def test_broken_escapes(text: str) -> None:
    with pytest.raises(PropertiesError, match="line 2"):
        parse_properties(f"x=y\n{text}")


def test_lines_of_properties() -> None:
    entries = parse_properties("\n# c\na=\\\n b\n\nc=d\n")
    assert [(entry.key, entry.line) for entry in entries] == [("a", 3), ("c", 6)]


def store(text: str, *, is_key: bool, wrap: bool) -> str:
    """The text in the form of java.util.Properties.store; with `wrap` each character on its own line."""
    out = []
    for index, char in enumerate(text):
        if char in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[char])
        elif char in "\\=:#!" or (char == " " and (is_key or index == 0 or wrap)):
            out.append("\\" + char)
        elif not " " <= char <= "~":
            data = char.encode("utf-16-be")
            out += ["".join(f"\\u{data[at] << 8 | data[at + 1]:04x}" for at in range(0, len(data), 2))]
        else:
            out.append(char)
    return ("\\\n \t" if wrap else "").join(out)


@given(
    entries=st.dictionaries(st.text(min_size=1), st.text()),
    separator=st.sampled_from(["=", ":", " = ", "\t:\f", " "]),
    end=st.sampled_from(["\n", "\r", "\r\n", "\n\n# comment \\\n"]),
    wrap=st.booleans(),
)
def test_properties_round_trip(entries: dict[str, str], separator: str, end: str, wrap: bool) -> None:
    text = "".join(
        f"{store(key, is_key=True, wrap=wrap)}{separator}{store(value, is_key=False, wrap=wrap)}{end}"
        for key, value in entries.items()
    )
    assert {entry.key: entry.value for entry in parse_properties(text)} == entries


@given(st.text())
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    try:
        lines = [entry.line for entry in parse_properties(text)]
    except PropertiesError as error:
        lines = [error.line]
    assert all(line >= 1 for line in lines)


@given(st.text(alphabet="abst.orejk_ ", max_size=40))
def test_any_key_is_found_or_has_a_hint_that_is_known(text: str) -> None:
    if config_keys.find(text) is None:
        near = config_keys.nearest(text)
        assert near is None or config_keys.find(near) is not None
