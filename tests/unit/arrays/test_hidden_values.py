"""Arrow keeps values below a null that nobody reads. They say nothing of the column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.arrays import types

NAN = float("nan")
BAD = pa.array([1.0, NAN, 2.0], pa.float64())
OFFSETS = pa.array([0, 1, 2, 3], pa.int32())
HIDDEN = pa.array([False, True, False])
KEYS = pa.array(["a", "b", "c"])


def _map(values: pa.Array, mask: pa.Array | None) -> pa.Array:
    whole = pa.MapArray.from_arrays(OFFSETS, KEYS, values)
    if mask is None:
        return whole
    bits = pa.py_buffer(np.packbits(~np.array(mask), bitorder="little"))
    entries = pa.StructArray.from_arrays([KEYS, values], fields=[whole.type.key_field, whole.type.item_field])
    return pa.Array.from_buffers(whole.type, 3, [bits, OFFSETS.buffers()[1]], children=[entries])


FORMS = {
    "list": lambda values, mask: pa.ListArray.from_arrays(OFFSETS, values, mask=mask),
    "large list": lambda values, mask: pa.LargeListArray.from_arrays(OFFSETS.cast(pa.int64()), values, mask=mask),
    "list of a fixed size": lambda values, mask: pa.FixedSizeListArray.from_arrays(values, 1, mask=mask),
    "struct": lambda values, mask: pa.StructArray.from_arrays([values], ["x"], mask=mask),
    "map": _map,
}


@pytest.mark.parametrize("inner", [None, *FORMS])
@pytest.mark.parametrize("outer", FORMS)
def test_a_value_below_a_null_is_not_in_the_column(outer: str, inner: str | None) -> None:
    values = BAD if inner is None else FORMS[inner](BAD, None)
    hidden, shown = FORMS[outer](values, HIDDEN), FORMS[outer](values, None)
    assert hidden.null_count == 1
    assert hidden.to_pylist()[1] is None
    assert types.is_finite(hidden)
    assert not types.is_finite(shown)
    if inner is not None:
        assert types.is_finite(FORMS[outer](FORMS[inner](BAD, HIDDEN), None))
