"""Bytes that are damaged, and the memory and the work that it takes to read them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

LENGTHS = (b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\x40\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\0\x40")
"""Wrong lengths of records, with the most significant byte first and last."""
_RESERVED_BYTES = 512 << 20
"""Threads reserve some for their stacks; a wrong length that is believed reserves more."""
_TRIES = 5
_QUICK_SECONDS = 0.03
"""Work of which nothing is to be said."""


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes with some places changed."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        how = draw(st.sampled_from(("bit", "byte", "cut", "put", "repeat", "number")))
        if how == "bit" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "byte" and data:
            data[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del data[at : at + draw(st.integers(1, 64))]
        elif how == "put":
            data[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif how == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 64))] * draw(st.integers(1, 20))
        else:
            data[at : at + 4] = draw(st.sampled_from(LENGTHS))
    return bytes(data)


@contextmanager
def memory_budget(size_bytes: int) -> Iterator[None]:
    """Limits the memory that the process touches within the block, and the memory that it only reserves.

    The kernel counts it. In Python 3.11, tracemalloc crashes the process if another thread allocates while it stops
    (python/cpython#128679).
    """
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size is the present one again
    before = _memory()
    yield
    after = _memory()
    assert after["VmHWM"] - before["VmHWM"] < size_bytes
    assert after["VmPeak"] - before["VmPeak"] < _RESERVED_BYTES


def _memory() -> dict[str, int]:
    """The highest sizes of this process in bytes."""
    found = re.findall(r"(VmHWM|VmPeak):\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {name: int(kib) * 1024 for name, kib in found}


def grows_too_fast(read: Callable[[bytes], object], make: Callable[[int], bytes], size: int) -> bool:
    """True if four times the bytes take much more than four times the work. Other work on the machine can only make
    one try look worse than it is, so the best of some tries counts."""
    for _ in range(_TRIES):
        large = _seconds(read, make(4 * size))
        if large < _QUICK_SECONDS or large < 9 * _seconds(read, make(size)):
            return False
    return True


def _seconds(read: Callable[[bytes], object], data: bytes) -> float:
    began = time.process_time()
    read(data)
    return time.process_time() - began
