"""Schemas as text, among the options of a system."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.system.rows.schema import parse_schema, split_schemas


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one column"),
        ("a", "found its end"),
        ("a INT b INT", "expected `,`, found `b`"),
        ("a INT, a INT", "a column twice"),
        ("a ARRAY<INT", "expected `>`, found its end"),
        ("a " + "ARRAY<" * 3000, "nested too deeply"),
        ("a DECIMAL(3,99999999999)", "is not a type"),
        ("a VARIANT", "`VARIANT` is not a type"),
        ("a DECIMAL(99)", "is not a type"),
        ("a INT; b INT", "`; b INT` is not understood"),
    ],
)
def test_what_is_no_schema(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        parse_schema(text)


def test_schemas_are_found_among_options_by_their_names_alone() -> None:
    options = {"schema": "n INT", "schema.a.b": "m INT", "schemas.a": "x", "folder": "/srv"}
    assert split_schemas("in", options) == ({"": "n INT", "a.b": "m INT"}, {"schemas.a": "x", "folder": "/srv"})
    with pytest.raises(ConfigError, match=r"`systems.in.schema.a`: `n` is not a schema"):
        split_schemas("in", {"schema.a": "n"})
