"""Messages in several formats, and what they cost beside JSON in the keyed fold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, make_dataclass
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec
import pydantic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import penstock as ps
from benchmarks import harness
from benchmarks.figures import COLUMNS, Side, run_sides
from benchmarks.jobs import Fold, application, configuration, create_stream, run
from benchmarks.workload import STREAM, Workload

CITIES = ("EWR", "JFK", "LGA", "BOS", "ORD")
HEADERS = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("source", b"tower"))
FIELDS = {"key": str, "origin": str, "number": int, "amount": float, "late": bool}
"""The fields of a flight, beside its gate, which may be None."""
Flight = make_dataclass("Flight", [*FIELDS.items(), ("gate", str | None, field(default=None))])
Flight.__module__ = __name__
StructFlight = msgspec.defstruct("StructFlight", [*FIELDS.items(), ("gate", str | None, None)], module=__name__)
_MODEL: dict[str, Any] = {**{name: (kind, ...) for name, kind in FIELDS.items()}, "gate": (str | None, None)}
ModelFlight = pydantic.create_model("ModelFlight", __module__=__name__, **_MODEL)
_AVRO_KINDS = {str: "string", int: "long", float: "double", bool: "boolean"}
_AVRO_FIELDS = [{"name": name, "type": _AVRO_KINDS[kind]} for name, kind in FIELDS.items()]
_AVRO_GATE = {"name": "gate", "type": ["null", "string"], "default": None}
AVRO = {"type": "record", "name": "Flight", "fields": [*_AVRO_FIELDS, _AVRO_GATE]}


def _protobuf_class() -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    kinds = {str: field.TYPE_STRING, int: field.TYPE_INT64, float: field.TYPE_DOUBLE, bool: field.TYPE_BOOL}
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    message = file.message_type.add(name="ProtobufFlight")
    for number, (name, kind) in enumerate({**FIELDS, "gate": str}.items(), 1):
        message.field.add(name=name, number=number, type=kinds[kind], label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessageClass(pool.FindMessageTypeByName("air.ProtobufFlight"))
    found.__module__ = __name__  # as in a module that protoc has generated
    return found


ProtobufFlight = _protobuf_class()


class Format(NamedTuple):
    """The form in which a side writes and reads flights."""

    serde: Callable[[], ps.Serde[Any]]
    made: Callable[..., Any]
    """A message from its fields."""
    is_dict: bool = False
    headers: tuple[tuple[str, bytes], ...] = ()


FORMATS = {
    "json": Format(ps.Json, dict, is_dict=True),
    "headers": Format(ps.Json, dict, is_dict=True, headers=HEADERS),
    "dataclass": Format(lambda: ps.Struct(Flight), Flight),
    "struct": Format(lambda: ps.Struct(StructFlight), StructFlight),
    "pydantic": Format(lambda: ps.Struct(ModelFlight), ModelFlight),
    "avro": Format(lambda: ps.Avro(AVRO), dict, is_dict=True),
    "protobuf": Format(lambda: ps.Protobuf(ProtobufFlight), ProtobufFlight),
}


class ObjectFold(Fold):
    """The same of objects."""

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        total = self.totals.get(envelope.key) or {"count": 0, "sum": 0.0}
        total["count"] += 1
        total["sum"] += envelope.value.amount
        self.totals.put(envelope.key, total)


def messages(workload: Workload, form: Format) -> Iterator[bytes]:
    serde = form.serde()
    for number, (key, amount) in enumerate(workload.records()):
        fields = {"origin": CITIES[number % 5], "number": number % 9000, "late": number % 3 == 0}
        yield serde.to_bytes(form.made(key=key, amount=amount, gate=f"A{number % 40}", **fields))


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over the stream; one entry per batch."""
    form = FORMATS[parameters["format"]]
    key, task = (itemgetter("key"), Fold) if form.is_dict else (attrgetter("key"), ObjectFold)
    return run(application(form.serde(), key, task), configuration(parameters))


@harness.benchmark(
    "formats", __doc__, events=1_500_000, batches=5, keys=100_000, sides=list(FORMATS), repeat=2, threads=2
)
def main(bench: harness.Bench) -> int:
    options, workload = bench.options, Workload.of(bench.options)
    sides = dict[str, Side]()
    for name in options.sides:
        streams, form = bench.work / "inputs" / name, FORMATS[name]
        create_stream(streams, STREAM, options.threads, list(messages(workload, form)), form.headers)
        own = {**workload.parameters(), "format": name, "streams": str(streams)}
        sides[name] = "formats:fold", "jobs:verify", own
    found = run_sides(bench, sides)
    for side in found.values() if "json" in found else ():
        side["beside_json"] = round(side["rows_per_second"] / found["json"]["rows_per_second"], 2)
    harness.show("after the warm-up", found, **COLUMNS, beside_json=".2f")
    return bench.finish(found)
