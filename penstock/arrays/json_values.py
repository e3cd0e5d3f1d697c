"""Single values as JSON, for a reader: what JSON lacks is a text."""

from __future__ import annotations

from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa

from penstock.arrays.json_rows import OPTIONS, json_value


def json_form(value: Any) -> Any:
    """An object as JSON has it: what JSON lacks becomes a text, as in the rows of an output."""
    if isinstance(value, list | tuple):
        return [json_form(each) for each in value]
    if isinstance(value, dict):
        return {key: json_form(each) for key, each in value.items()}
    if isinstance(value, Decimal | bytes | timedelta):
        return json_value(value)
    if isinstance(value, date | time):
        return orjson.loads(orjson.dumps(value, json_value, OPTIONS))
    return value


def shown_row(rows: pa.StructArray) -> bytes | None:
    """The first row as JSON for a reader, also where a value has none: such a field is a text."""
    if not rows[0].is_valid:
        return None
    cells = zip((field.name for field in rows.type), rows.flatten(), strict=True)
    return b"%b" % orjson.dumps({name: _shown(column[0]) for name, column in cells})


def _shown(cell: pa.Scalar) -> Any:
    try:
        value = cell.as_py()
        return orjson.Fragment(orjson.dumps(value, json_value, OPTIONS)) if value == value else str(value)
    except Exception:
        try:
            return cell.cast(pa.string()).as_py()
        except pa.ArrowException:
            return f"a value of the type {cell.type}"
