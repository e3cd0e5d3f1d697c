"""Messages in several formats, and what they cost beside JSON.

The keyed fold reads flights that are written as JSON objects (`json`), the same with headers that nobody reads
(`headers`), checked against a dataclass, a msgspec.Struct or a model of pydantic (`dataclass`, `struct`, `pydantic`),
or in Avro or Protobuf (`avro`, `protobuf`). The exchange carries them in the same format. Everything else is equal.

    python -m benchmarks.formats [--events N] [--batches N] [--keys N] [--sides ...] [--repeat N] [--json PATH]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pydantic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import penstock as ps
from benchmarks import harness
from benchmarks.keyed_fold.figures import COLUMNS, of_batches, summary
from benchmarks.keyed_fold.penstock import configuration, follow
from benchmarks.keyed_fold.workload import STREAM, Workload, compare
from penstock.config.load import load_config
from penstock.state.reading.reader import read_store
from penstock.system.local import LocalSystem

CITIES = ("EWR", "JFK", "LGA", "BOS", "ORD")
HEADERS = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("source", b"tower"))


@dataclass
class Flight:
    """A flight."""

    key: str
    origin: str
    number: int
    amount: float
    late: bool
    gate: str | None = None


class StructFlight(msgspec.Struct):
    """The same."""

    key: str
    origin: str
    number: int
    amount: float
    late: bool
    gate: str | None = None


class ModelFlight(pydantic.BaseModel):
    """The same."""

    key: str
    origin: str
    number: int
    amount: float
    late: bool
    gate: str | None = None


AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "key", "type": "string"},
        {"name": "origin", "type": "string"},
        {"name": "number", "type": "long"},
        {"name": "amount", "type": "double"},
        {"name": "late", "type": "boolean"},
        {"name": "gate", "type": ["null", "string"], "default": None},
    ],
}


def _protobuf_class() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    message = file.message_type.add(name="ProtobufFlight")
    text = kinds.TYPE_STRING
    fields = {"key": text, "origin": text, "number": kinds.TYPE_INT64, "amount": kinds.TYPE_DOUBLE}
    for number, (name, kind) in enumerate({**fields, "late": kinds.TYPE_BOOL, "gate": text}.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
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


class Fold(ps.StreamTask):
    """Running count and sum of each key, of messages that are dicts."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("totals")

    def amount(self, message: Any) -> float:
        """The amount of a message."""
        return float(message["amount"])

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        total = self.totals.get(envelope.key) or {"count": 0, "sum": 0.0}
        total["count"] += 1
        total["sum"] += self.amount(envelope.value)
        self.totals.put(envelope.key, total)


class ObjectFold(Fold):
    """The same of objects."""

    def amount(self, message: Any) -> float:
        return float(message.amount)


def application(name: str) -> ps.StreamApplication:
    """Flights by key into the fold."""
    form = FORMATS[name]
    serde = form.serde()
    app = ps.StreamApplication("formats")
    app.store("totals", key=ps.String(), value=ps.Json())
    key: Callable[[Any], str] = (lambda m: m["key"]) if form.is_dict else (lambda m: m.key)
    flights = app.input(f"local.{STREAM}", value=serde).partition_by(key, key=ps.String(), value=serde)
    flights.process(Fold if form.is_dict else ObjectFold, stores=["totals"])
    return app


def messages(workload: Workload, form: Format) -> Iterable[bytes]:
    """The flights of a workload as bytes."""
    serde, number = form.serde(), 0
    for keys, amounts in workload.records():
        for key, amount in zip(keys, amounts, strict=True):
            fields = {"origin": CITIES[number % 5], "number": number % 9000, "late": number % 3 == 0}
            yield serde.to_bytes(form.made(key=key, amount=amount, gate=f"A{number % 40}", **fields))
            number += 1


def write_input(workload: Workload, form: Format, folder: Path, partitions: int) -> None:
    """Write the flights into a local stream."""
    system = LocalSystem("local", str(folder))
    system.admin().create_stream(STREAM, partitions)
    writer = system.writer(None)
    rows = list(messages(workload, form))
    for partition in range(partitions):
        own = rows[partition::partitions]
        for first in range(0, len(own), 50_000):
            piece = own[first : first + 50_000]
            records = [(0, None, row, form.headers) if form.headers else (0, None, row) for row in piece]
            writer.append(ps.SystemStreamPartition("local", STREAM, partition), records)
    writer.close()


def config_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """A commit after every batch."""
    size = Workload(**parameters["workload"]).batch_events
    return configuration(Path(parameters["streams"]), Path(parameters["work"]), size, parameters["threads"])


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over the stream; one entry per batch."""
    job = application(parameters["format"]).run(config_of(parameters), until="latest")
    return {"batches": follow(job)}


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rebuild the state from the last checkpoint, as a restore does, and compare every key."""
    config = load_config(overrides=config_of(parameters), default_job_name="formats")
    found = {}
    for _, key, value in read_store(config, "totals"):
        total = msgspec.json.decode(value)
        found[key.decode()] = (total["count"], total["sum"])
    return compare(found, Workload(**parameters["workload"]).totals())


def main(given: Sequence[str] | None = None) -> int:
    options = harness.options(
        "formats", __doc__, given, events=1_500_000, batches=5, keys=100_000, sides=list(FORMATS), repeat=2, threads=2
    )
    workload = Workload(options.events, options.batches, options.keys)
    workload.check(options.threads)
    with harness.Bench("formats", options) as bench:
        parameters = {}
        for name in options.sides:
            streams = bench.work / "inputs" / name
            write_input(workload, FORMATS[name], streams, options.threads)
            parameters[name] = {
                "workload": asdict(workload),
                "format": name,
                "streams": str(streams),
                "threads": options.threads,
            }
        for name in bench.turns(options.sides, options.repeat):
            bench.run(name, "formats:fold", parameters[name], figures=of_batches, verify="formats:verify")
        sides = {name: summary(runs) for name, runs in bench.runs.items()}
        for side in sides.values() if "json" in sides else ():
            side["beside_json"] = round(side["rows_per_second"] / sides["json"]["rows_per_second"], 2)
        harness.show("after the warm-up", sides, **COLUMNS, beside_json=".2f")
        return bench.finish(sides)


if __name__ == "__main__":
    sys.exit(main())
