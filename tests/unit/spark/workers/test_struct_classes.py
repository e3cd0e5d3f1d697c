"""Classes of typed messages that a script defines reach other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.tools.places import ROOT

SCRIPT = '''
import sys
from dataclasses import dataclass, field

import msgspec

import penstock as ps
from penstock.spark.workers.packages import pickled


@dataclass
class Leg:
    miles: int


class Base(msgspec.Struct, kw_only=True):
    id: int = 7


class Trip(Base, tag="trip", rename="camel"):
    """A trip."""

    tail_no: str
    legs: list[Leg] = msgspec.field(default_factory=list)
    speed: float = 1.5

    @property
    def count(self) -> int:
        return len(self.legs)

    def faster(self, speed: float) -> "Trip":
        return Trip(self.tail_no, self.legs, speed, id=self.id)


@dataclass
class Flown:
    trips: list[Trip] = field(default_factory=list)


serdes = ps.Struct(Trip), ps.Struct(Flown)
data = serdes[1].to_bytes(Flown([Trip("N1", [Leg(5)])]))
assert serdes[1].from_bytes(data).trips[0].count == 1
for each in range(2):
    sys.stdout.buffer.write(pickled((serdes, lambda trip: trip.faster(3.0).speed, Trip)) + b"=====")
'''
READER = """
import pickle, sys

one, two, _ = sys.stdin.buffer.read().split(b"=====")
(trips, flown), faster, kind = pickle.loads(one)
trip = trips.from_bytes(b'{"type":"trip","tailNo":"N1","legs":[{"miles":5}],"id":3}')
print(trip, trip.count, faster(trip), type(trip) is kind, trips.to_bytes(trip).decode())
print(flown.from_bytes(b'{"trips":[{"type":"trip","tailNo":"N2"}]}'))
print(pickle.loads(two)[2] is kind)
"""


def test_classes_of_a_script_have_their_fields_in_other_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")

    def run(*command: str, given: bytes = b"") -> bytes:
        done = subprocess.run([sys.executable, *command], input=given, capture_output=True, cwd=ROOT, check=False)
        assert not done.returncode, done.stderr.decode()
        return done.stdout

    found = run("-c", READER, given=run(str(script))).decode()
    row = '{"type":"trip","tailNo":"N1","legs":[{"miles":5}],"speed":1.5,"id":3}'
    assert found.splitlines() == [
        f"Trip(tail_no='N1', legs=[Leg(miles=5)], speed=1.5, id=3) 1 3.0 True {row}",
        "Flown(trips=[Trip(tail_no='N2', legs=[], speed=1.5, id=7)])",
        "True",
    ]
