"""Approximate aggregates, whose states have a bounded size: sketches of the library Apache DataSketches."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from penstock.api.time.aggregates import Aggregate
from penstock.errors import ConfigError

_LG_ROWS = 12
"""2^12 rows: a relative standard error of 1.6 %."""
_COMPRESSION = 200


def _sketches(what: str) -> ModuleType:
    """Raises ConfigError if the package is not installed."""
    try:
        import datasketches
    except ImportError:
        raise ConfigError(
            f"{what} needs the package `datasketches`, here and on executors: install `penstock-streams[sketches]`"
        ) from None
    module: ModuleType = datasketches
    return module


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass(frozen=True, slots=True)
class ApproxDistinct(Aggregate):
    """The approximate number of different values, which are texts, bytes or numbers.

    Two of three results are within 1.6 % of the exact number, 99 of 100 within 4.2 %; up to a few hundred values, it is
    exact. The state takes at most 4 kB, where `Distinct` keeps every value. It needs `penstock-streams[sketches]`, and
    is a HyperLogLog sketch.

    Example:
        >>> viewers = ps.ApproxDistinct(lambda view: view["user"])
        >>> state = None
        >>> for number in range(1000):
        ...     state = viewers.add(state, {"user": f"user {number % 300}"}, 0)
        >>> 285 < viewers.result(state) < 315
        True
    """

    def __post_init__(self) -> None:
        Aggregate.__post_init__(self)
        _sketches("ApproxDistinct")

    def add(self, state: Any, value: Any, time_ms: int) -> Any:
        x = self.of(value)
        if x is None:
            return state
        if state is None:
            return self.one(x, time_ms)
        state.update(_counted(x))
        return state

    def one(self, x: Any, time_ms: int) -> Any:
        sketch = _sketches("ApproxDistinct").hll_sketch(_LG_ROWS)
        sketch.update(_counted(x))
        return sketch

    def merge(self, first: Any, second: Any) -> Any:
        module = _sketches("ApproxDistinct")
        union = module.hll_union(_LG_ROWS)
        union.update(first)
        union.update(second)
        return union.get_result(module.tgt_hll_type.HLL_8)

    def result(self, state: Any) -> Any:
        return 0 if state is None else round(state.get_estimate())

    def to_json(self, state: Any) -> Any:
        return None if state is None else _text(state.serialize_compact())

    def from_json(self, stored: Any) -> Any:
        if stored is None:
            return None
        data = base64.b64decode(stored)
        _check_distinct(data)
        return _sketches("ApproxDistinct").hll_sketch.deserialize(data)


_LIST, _SET, _ROWS = 0, 1, 2
_HEADS = {_LIST: (2, 8), _SET: (3, 12), _ROWS: (10, 40)}
"""The words of a sketch's head, as the sketch says, and its bytes, by what the sketch keeps."""
_BITS = {0: 4, 1: 6, 2: 8}
"""The bits of a row, by the kind of rows."""


def _check_distinct(data: bytes) -> None:
    """Raise ValueError unless the bytes are as long as they say, and of a sketch that this class makes: the library
    believes what it reads, and a damaged sketch ends the process."""
    kind = data[7] & 3 if len(data) >= 8 else 3
    words, size = _HEADS.get(kind, (0, 0))
    if len(data) < size or data[:4] != bytes([words, 1, 7, _LG_ROWS]):
        raise ValueError("the state is no sketch of distinct values")
    if kind == _LIST:
        size += 4 * data[6]
        is_right = data[6] <= 8 and data[4] == 3
    elif kind == _SET:
        count = int.from_bytes(data[8:12], "little")
        size += 4 * count
        is_right = 5 <= data[4] <= _LG_ROWS - 3 and count <= 1 << data[4]
    else:
        bits, aux = _BITS.get(data[7] >> 2 & 3, 0), int.from_bytes(data[36:40], "little")
        size += (bits << _LG_ROWS) // 8 + (bits == 6) + 4 * aux
        is_right = bits > 0 and data[6] < 64 and (bits == 4 or not aux) and aux <= 1 << min(data[4], _LG_ROWS)
    if not is_right or len(data) != size:
        raise ValueError("the state of a sketch of distinct values is damaged")


def _counted(x: Any) -> Any:
    """The value as a sketch takes it: equal numbers are one value, as everywhere in Python. Raises TypeError for other
    values."""
    if isinstance(x, str):
        return f"t{x}"  # a sketch passes over an empty text
    if isinstance(x, bytes | bytearray):
        return f"b{x.hex()}"
    if isinstance(x, float) and not x.is_integer():
        return x
    if isinstance(x, int | float):
        number = int(x)
        return number if -(2**63) <= number < 2**63 else f"i{number}"
    raise TypeError(f"ApproxDistinct counts texts, bytes and numbers, not a value of type {type(x).__name__}")


@dataclass(frozen=True, slots=True)
class ApproxQuantiles(Aggregate):
    """Approximate quantiles of numbers: a list, in the order of `quantiles`. None if there is no value.

    The rank of a result is within 1 % of that of the quantile, and closer near 0 and 1. NaN does not count. The state
    takes at most 8 kB. It needs `penstock-streams[sketches]`, and is a t-digest.

    Args:
        of: selects the number in a message's value.
        quantiles: numbers from 0 to 1; 0.5 is the median.

    Example:
        >>> delay = ps.ApproxQuantiles(lambda flight: flight["delay"], quantiles=[0.5, 0.99])
        >>> state = None
        >>> for minutes in range(1001):
        ...     state = delay.add(state, {"delay": minutes}, 0)
        >>> median, most = delay.result(state)
        >>> 490 < median < 510, 985 < most < 995
        (True, True)
    """

    quantiles: Sequence[float] = (0.5, 0.95, 0.99)

    def __post_init__(self) -> None:
        Aggregate.__post_init__(self)
        given: object = self.quantiles
        if not isinstance(given, Sequence) or not given or not all(_is_share(each) for each in given):
            raise ConfigError(f"ApproxQuantiles(quantiles={given!r}): give numbers from 0 to 1, as [0.5, 0.99]")
        object.__setattr__(self, "quantiles", tuple(given))
        _sketches("ApproxQuantiles")

    def add(self, state: Any, value: Any, time_ms: int) -> Any:
        x = self.of(value)
        if x is None or math.isnan(x):
            return state
        if state is None:
            state = _sketches("ApproxQuantiles").tdigest_double(_COMPRESSION)
        state.update(float(x))
        return state

    def one(self, x: Any, time_ms: int) -> Any:
        sketch = _sketches("ApproxQuantiles").tdigest_double(_COMPRESSION)
        sketch.update(float(x))
        return sketch

    def merge(self, first: Any, second: Any) -> Any:
        sketch = _sketches("ApproxQuantiles").tdigest_double(_COMPRESSION)
        sketch.merge(first)
        sketch.merge(second)
        return sketch

    def result(self, state: Any) -> Any:
        return None if state is None else [state.get_quantile(each) for each in self.quantiles]

    def to_json(self, state: Any) -> Any:
        return None if state is None else _text(state.serialize())

    def from_json(self, stored: Any) -> Any:
        if stored is None:
            return None
        return _sketches("ApproxQuantiles").tdigest_double.deserialize(base64.b64decode(stored))


def _is_share(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1
