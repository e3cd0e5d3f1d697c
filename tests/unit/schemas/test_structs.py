"""Typed messages and state."""

from __future__ import annotations

import importlib
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, TypedDict, get_origin
from uuid import UUID

import msgspec
import pydantic
import pytest
from pyspark import cloudpickle

import penstock as ps
from penstock.spark.workers.packages import dumps
from penstock.testing import TestRunner
from tests.support.processes.python import run_python

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Trip:
    """A trip."""

    tail: str
    miles: int = 0
    at: datetime | None = None
    price: Decimal = Decimal(0)
    notes: dict[str, str] = field(default_factory=dict)


class StructTrip(msgspec.Struct):
    """A trip."""

    tail: str
    miles: int = 0


class ModelTrip(pydantic.BaseModel):
    """A trip."""

    tail: str
    miles: int = 0
    speed: float = 0.0


class TupleTrip(NamedTuple):
    """A trip."""

    tail: str
    miles: int = 0


class DictTrip(TypedDict):
    """A trip."""

    tail: str
    miles: int


@dataclass
class Journey:
    """Trips, and those back."""

    trips: list[ModelTrip]
    back: Journey | None = None


class StructJourney(msgspec.Struct):
    """A trip."""

    trip: ModelTrip


class Unknown:
    """Nothing that JSON could hold."""


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (Trip, Trip("N1", 5, AT, Decimal("1.25"), {"a": "b"})),
        (StructTrip, StructTrip("N1", 5)),
        (ModelTrip, ModelTrip(tail="N1", miles=5)),
        (TupleTrip, TupleTrip("N1", 5)),
        (DictTrip, DictTrip(tail="N1", miles=5)),
        (list[Trip], [Trip("N1", 5)]),
        (dict[str, int], {"N1": 5}),
        (list[ModelTrip], [ModelTrip(tail="N1", miles=5)]),
        (Journey, Journey([ModelTrip(tail="N1")], Journey([]))),
        (ModelTrip | Journey, Journey([])),
    ],
)
def test_objects_pass_through_an_application_and_its_state(kind: Any, made: Any) -> None:
    class Keeps(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.kept: ps.KeyValueStore[str, Any] = context.store("kept")

        def process(self, envelope: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
            before = self.kept.get("all")
            self.kept.put("all", envelope.value)
            if before is not None:
                collector.emit(key="all", value=before)

    app = ps.StreamApplication("typed")
    app.store("kept", value=ps.Struct(kind))
    trips = app.input("local.in", value=ps.Struct(kind)).partition_by(lambda _: "all")
    trips.process(Keeps, stores=["kept"], value=ps.Struct(kind)).send_to(app.output("local.out", value=ps.Struct(kind)))
    runner = TestRunner(app).input("local.in", [made]).run().commit().crash().restore().input("local.in", [made]).run()
    assert [message.value for message in runner.output("local.out")] == [made]
    assert type(runner.output("local.out")[0].value) is type(made)


@pytest.mark.parametrize("kind", [Trip, StructTrip, ModelTrip])
def test_a_message_that_does_not_fit_the_type_is_one_failed_message(kind: Any) -> None:
    app = ps.StreamApplication("typed")
    app.input("local.in", value=ps.Struct(kind)).map(lambda trip: trip.miles).send_to(app.output("local.out"))
    runner = TestRunner(app, dead_letter="local.dead")
    writer, place = runner._home.streams.systems["local"].writer(None), ps.SystemStreamPartition("local", "in", 0)
    data = [
        b'{"tail":"N1","miles":1,"more":2}',
        b'{"miles":5}',
        b'{"tail":"N1","miles":"many"}',
        b"[]",
        b'{"tail":"N2"}',
    ]
    writer.append(place, [(0, None, each) for each in data])
    runner.run()
    assert [message.value for message in runner.output("local.out")] == [1, 0]
    letters = [message.value.decode() for message in runner.output("local.dead")]
    assert len(letters) == 3
    assert "tail" in letters[0]
    assert "miles" in letters[1]


def test_fields_with_defaults_can_be_added_to_what_json_has_written() -> None:
    before = ps.Json().to_bytes({"tail": "N1", "gone": 5})
    assert ps.Struct(Trip).from_bytes(before) == Trip("N1")
    assert ps.Struct(Trip).name == ps.Json().name


def test_equal_objects_have_equal_bytes() -> None:
    one, other = ({"a": "1", "b": "2"}, OrderedDict([("b", "2"), ("a", "1")]))
    assert ps.Struct(Trip).to_bytes(Trip("N1", notes=one)) == ps.Struct(Trip).to_bytes(Trip("N1", notes=dict(other)))


@pytest.mark.parametrize(
    ("kind", "wrong", "why"),
    [
        (Trip, {"tail": "N1"}, "takes a Trip, not a dict"),
        (Trip, Trip("N1", "many"), "Expected `int`, got `str`"),  # type: ignore[arg-type]
        (StructTrip, StructTrip("N1", None), "Expected `int`, got `null`"),  # type: ignore[arg-type]
        (ModelTrip, Trip("N1"), "takes a ModelTrip, not a Trip"),
        (ModelTrip, ModelTrip(tail="N1", speed=math.nan), "JSON has no nan"),
        (dict[str, float], {"a": math.inf}, "JSON has no inf"),
        (list[ModelTrip], [5], "ModelTrip"),
        (list[ModelTrip], [ModelTrip(tail="N1", speed=math.nan)], "JSON has no nan"),
    ],
)
def test_what_has_no_json_is_not_written(kind: Any, wrong: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        ps.Struct(kind).to_bytes(wrong)


def test_a_type_without_json_is_refused() -> None:
    with pytest.raises(ps.ConfigError, match=r"ps\.Struct"):
        ps.Struct(int | str | Trip | StructTrip)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (Trip, "Trip"),
        (ModelTrip, "ModelTrip"),
        (list[Trip], "list[Trip]"),
        (dict[str, list[StructTrip | None]], "dict[str, list[StructTrip | None]]"),
        (list[ModelTrip], "list[ModelTrip]"),
        (Annotated[float, msgspec.Meta(ge=0.5)], "Annotated[float, Meta(ge=0.5)]"),
    ],
)
def test_the_repr_is_the_type_as_one_writes_it(kind: Any, shown: str) -> None:
    assert repr(ps.Struct(kind)) == f"ps.Struct({shown})"


@pytest.mark.parametrize("kind", [Unknown, list[Unknown], dict[str, Unknown | None], StructJourney])
def test_a_part_of_an_unknown_type_is_refused(kind: Any) -> None:
    with pytest.raises(ps.ConfigError, match=r"`(Unknown|ModelTrip)` is neither"):
        ps.Struct(kind)


def test_a_name_that_nobody_can_find_is_a_clear_error() -> None:
    @dataclass
    class Local:
        trips: list[Hidden]

    class Hidden:
        """Only known in this function."""

    with pytest.raises(ps.ConfigError, match="Hidden"):
        ps.Struct(Local)


SCRIPT = """
from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, TypedDict

import msgspec
import penstock as ps


@dataclass
class Source:
    at: datetime


class Step(NamedTuple):
    number: int
    source: Source | None = None


class Place(TypedDict):
    source: Source


@dataclass
class Event:
    kind: Literal["a", "b"]
    source: Source
    steps: list[Step] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)


class Later(msgspec.Struct):
    kind: Literal["a", "b"]
    event: Event | None = None


serdes = [ps.Struct(Event), ps.Struct(list[Later]), ps.Struct(Event)]
"""
LOADER = """
import pickle, sys
first, second, _ = pickle.load(open(sys.argv[1], "rb"))
source = b'{"at":"2026-01-01T00:00:00Z"}'
data = b'{"kind":"a","source":%b,"steps":[[3,null]],"places":{"x":{"source":%b}}}' % (source, source)
event = first.from_bytes(data)
assert first.to_bytes(event) == data, first.to_bytes(event)
print(event.source.at.year, event.steps, second.from_bytes(b'[{"kind":"b","event":' + data + b'}]')[0].kind)
try:
    first.from_bytes(data.replace(b'"a"', b'"c"'))
except ValueError as error:
    print(error)
"""


def test_types_of_a_script_with_annotations_as_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has the classes of the script, and not the names in it."""
    (tmp_path / "only_here.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("only_here")
    cloudpickle.register_pickle_by_value(module)
    (tmp_path / "pickled").write_bytes(dumps(module.serdes))
    cloudpickle.unregister_pickle_by_value(module)
    shown = run_python("-c", LOADER, str(tmp_path / "pickled"), folder=tmp_path)
    assert shown.stdout == "2026 [Step(number=3, source=None)] b\nInvalid enum value 'c' - at `$.kind`\n"


class Prices(msgspec.Struct):
    """Decimals within others, and as keys."""

    prices: list[Decimal] = []
    by_price: dict[Decimal, int] = {}


class ModelPrice(pydantic.BaseModel):
    """A price."""

    price: Decimal = Decimal(0)


LARGE = ["1e-300000000", "1e300000000", "1" * 1001, "0." + "0" * 1000 + "1", "1\\u0065300000000", "1e٣٣٣٣٣", "٣" * 1001]


@pytest.mark.attack
@pytest.mark.parametrize("text", LARGE)
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (Trip, '{"tail":"N1","price":"%s"}'),
        (ModelPrice, '{"price":"%s"}'),
        (Prices, '{"prices":["%s"]}'),
        (Prices, '{"by_price":{"%s":1}}'),
        (list[Trip], '[{"tail":"N1","price":"%s"}]'),
        (Decimal, '"%s"'),
    ],
)
def test_a_decimal_with_too_many_digits_is_refused(kind: Any, form: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"has [\d,]+ digits; at most 1,000 are read|valid decimal|Expected `decimal`"):
        ps.Struct(kind).from_bytes((form % text).encode())


@pytest.mark.parametrize("text", ["1e999", "1e-999", "12.50", "1" * 1000, "0", "-0.000"])
def test_other_decimals_are_read(text: str) -> None:
    one = ps.Struct(Trip).from_bytes(f'{{"tail":"e2","price":"{text}"}}'.encode())
    (other,) = ps.Struct(list[Trip]).from_bytes(f'[{{"tail":"1e9999","price":"{text}"}}]'.encode())
    assert one.price == other.price == Decimal(text)


@pytest.mark.attack
@pytest.mark.parametrize("kind", [dict[int, int], dict[UUID, int], set[int], list[dict[Decimal, int]], frozenset[Any]])
def test_keys_that_all_have_one_hash_are_refused(kind: Any) -> None:
    hashes = [number * (2**61 - 1) for number in range(1, 2000)]
    texts = [str(UUID(int=each)) if "UUID" in str(kind) else str(each) for each in hashes]
    if get_origin(kind) in (set, frozenset):
        data = f"[{','.join(texts)}]"
    else:
        data = "{" + ",".join(f'"{each}":1' for each in texts) + "}"
        data = f"[{data}]" if get_origin(kind) is list else data
    with pytest.raises(ValueError, match="more than 100 of its keys have the same hash"):
        ps.Struct(kind).from_bytes(data.encode())
    usual = {number * 7919 + 2**62: number for number in range(5000)}
    assert ps.Struct(dict[int, int]).from_bytes(msgspec.json.encode(usual)) == usual


@pytest.mark.parametrize("key", [7, Decimal("1.50"), UUID(int=5), AT, AT.date(), 0.5, b"k", "k"], ids=repr)
def test_a_dict_with_keys_of_any_type_that_json_has_a_text_for(key: Any) -> None:
    kind: Any = GenericAlias(dict, (type(key), list[Decimal]))
    serde: ps.Serde[Any] = ps.Struct(kind)
    assert serde.from_bytes(serde.to_bytes({key: [Decimal("2.5")]})) == {key: [Decimal("2.5")]}
