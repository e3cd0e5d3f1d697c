"""Decoding documents."""

from __future__ import annotations

import subprocess
import sys

_RACE = """
import sys, threading
from dataclasses import make_dataclass

import msgspec
from penstock.base.documents import convert, decoder

sys.setswitchinterval(1e-6)
inner = {"a": 1, "b": "x", "c": [1], "d": {"q": 1}}
middle = {"x": inner, "y": [inner], "z": None}
document = {"m": middle, "n": [middle], "i": inner}
data = msgspec.msgpack.encode(document)

def read(form, start, odd):
    start.wait()
    convert(form, document) if odd else decoder(form).decode(data)

for _ in range(100):
    Inner = make_dataclass("Inner", [("a", int), ("b", str), ("c", list[int]), ("d", dict[str, int])])
    Middle = make_dataclass("Middle", [("x", Inner), ("y", list[Inner]), ("z", Inner | None)])
    form = make_dataclass("Outer", [("m", Middle), ("n", list[Middle]), ("i", Inner)])
    start = threading.Barrier(4)
    threads = [threading.Thread(target=read, args=(form, start, number % 2)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("read")
"""


def test_threads_decode_a_class_for_the_first_time_at_once() -> None:
    # In a process of its own, because msgspec alone ends the process here.
    done = subprocess.run([sys.executable, "-c", _RACE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")
