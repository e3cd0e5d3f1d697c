"""Messages between the processes of a job, and the page that a container leaves behind."""

from __future__ import annotations

import io
import zlib
from contextlib import suppress
from hashlib import sha256
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from penstock.api.messages import Headers, pack_headers, unpack_headers
from penstock.batch.batch import Batch
from penstock.dashboard.server import _body
from penstock.errors import FailedMessage, PenstockError
from penstock.host.position_page import _FORM, _HEAD_BYTES, _SLOT_BYTES, spots_in
from penstock.outbox import task as outbox_objects
from penstock.outbox.wing import OutboxObject, OutputPart, Publish
from penstock.runtime.messages.incoming import read_trailer
from penstock.runtime.messages.packet import (
    MESSAGE_SCHEMA,
    Packet,
    PacketKind,
    decode_messages,
    encode_messages,
    from_batch,
    pack_places,
    to_batch,
    unpack_places,
    with_headers,
)
from penstock.runtime.reports import Report
from penstock.spark.processor.fields import chunk, rows_of
from penstock.spark.workers.worker import PacketSerializer
from penstock.standby.wing import StandbyState
from penstock.tables.files import VersionProblem
from penstock.wing import calls
from penstock.wire.protocol import (
    CALLS,
    AttemptCall,
    Beat,
    EndBatch,
    Identity,
    OpenEpoch,
    OpenProgress,
    UploadResult,
    dump,
    load,
    raw,
)
from tests.support.parsers.parser import SSP, Parser, all_of
from tests.support.streams.trailers import trailer

MESSAGES = pa.record_batch([[b"k", None], [b"value", b""], [1, 2], [3, 4], [5, 6]], schema=MESSAGE_SCHEMA)
PAYLOAD = bytes(encode_messages(MESSAGES))
HEADED = bytes(encode_messages(with_headers(MESSAGES, pa.array([pack_headers((("trace", b"7f"),)), None]))))
TRAILER = trailer((0, 3), 1, 2, token="token", dest=1)
PACKETS = [
    Packet(0, 1, PacketKind.DATA, 0, 3, "token", 0, 3, 0, 2, PAYLOAD),
    TRAILER,
]
FAILED = FailedMessage("local.trips", 0, 7, "k", "task", "ValueError: no", "")
ROWS = pa.record_batch({"n": [1, 2], "names": [["a", None], []], "of": [{"x": "y"}, None]})


def read_messages(data: bytes) -> list[list[Any]]:
    return [column.to_pylist() for column in decode_messages(data).columns]


PLACES = pack_places([np.array(column, np.int64) for column in ([1, 900], [3, 3], [5, 2**40])])


def frames() -> bytes:
    stream = io.BytesIO()
    PacketSerializer().dump_stream(iter([to_batch(PACKETS)]), stream)
    return stream.getvalue()


def read_frames(data: bytes) -> None:
    """A truncated frame is an EOFError, by which the driver knows that Spark has died."""
    with suppress(EOFError):
        for batch in PacketSerializer().load_stream(io.BytesIO(data)):
            for packet in from_batch(batch):
                if packet.kind == PacketKind.DATA and packet.payload is not None:
                    read_messages(packet.payload)


CONTENTS = outbox_objects.ObjectContents(
    "k", (outbox_objects.Chunk(SSP, 0, 4, len(PAYLOAD) + len(HEADED), (PAYLOAD, HEADED)),), bytes
)
NAMED, OUTBOX = outbox_objects.encode(CONTENTS, 0)


def read_outbox(data: bytes) -> None:
    """With the hash that the checkpoint log would have of it."""
    named = OutboxObject(NAMED.key, 0, len(data), sha256(data).hexdigest(), {SSP: OutputPart(1, 4)})
    contents = outbox_objects.decode(named, data)
    for part in contents.chunks:
        list(contents.records(part))


UPLOADED = {"0": {"blob": {"s": "m"}}}
IDENTITY, BATCH = Identity("00ff", 7), Batch(number=3, run=1, time_ms=5, firing={"w": 4})
STANDBYS = raw([StandbyState(0, None, "", "")])
BEAT = Beat("7-0", "00ff", 1, 2, 3, metrics=[("a", "b", "c", "counter", (1,))], wings={"standby": STANDBYS})
REQUESTS = {
    "end": EndBatch(BATCH, {0: {1: "token"}}),
    "publish": Publish(3, (NAMED,), -1),
    "open": OpenEpoch(b"package", 3, "1-2", UPLOADED, ("s",), (0,), (1,)),
}
ANSWERS = {
    "beat": BEAT,
    "upload": UploadResult(UPLOADED, {"outbox": raw((NAMED,))}),
    "open": OpenProgress(3, ("n",), {0: {"o": (1, 2)}}, (0,)),
}


def page_of(data: bytes) -> bytes:
    """The page on which an attempt notes its place: a slot whose checksum fits, and what is before it."""
    slot, names = data[: _SLOT_BYTES - 5], data[_SLOT_BYTES - 5 :][:_HEAD_BYTES]
    text = slot[_FORM.size :]
    checksum = zlib.crc32(slot[: _FORM.size + 2 + int.from_bytes(text[:2], "little")]).to_bytes(4, "little")
    return names.ljust(_HEAD_BYTES) + b"\1" + checksum + slot


PLACE = _FORM.pack(1, 7, 3, 1, 0, 2, -1, 9, 0, 0, 5, 5, 1.5) + b"\4\0step"


class Sent:
    """A request whose body are these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def stream(self) -> Any:
        yield self._data


def read_body(data: bytes) -> object:
    body: Any = _body(Sent(data))  # type: ignore[arg-type]
    try:
        body.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("it waits for more than the body")


BAD_BODY = (ValueError, TypeError, RecursionError)
BETWEEN = {
    "headers of a message": Parser(
        unpack_headers, [pack_headers((("trace", b"7f"), ("none", None)))], again=pack_headers, kind=Headers
    ),
    "messages": Parser(read_messages, [PAYLOAD, HEADED]),
    "names in a trailer": Parser(lambda data: read_trailer(TRAILER._replace(payload=data)), [TRAILER.payload or b""]),
    "counts in a trailer": Parser(lambda data: read_trailer(TRAILER._replace(places=data)), [TRAILER.places or b""]),
    "places": Parser(lambda data: unpack_places(data, 3, 2), [PLACES]),
    "frames of packets": Parser(read_frames, [frames()]),
    "report": Parser(
        Report.decode,
        [bytes(Report(1, 2, "t", {0: 7}, failed=FAILED).packet().payload or b"")],
        again=lambda found: bytes(found.packet().payload or b""),
        kind=Report,
    ),
    "outbox object": Parser(read_outbox, [OUTBOX]),
    "attempt call": Parser(lambda d: load(AttemptCall, d), [dump(AttemptCall(IDENTITY, BATCH, 1, [0, 1]))], again=dump),
    **{
        f"call {name}": Parser(calls()[name].parse, [calls()[name].encode(IDENTITY, request)], again=dump)
        for name, request in REQUESTS.items()
    },
    **{f"answer {name}": Parser(CALLS[name].decode, [dump(answer)], again=dump) for name, answer in ANSWERS.items()},
    "any call": Parser(
        all_of([part for each in calls().values() for part in (each.parse, each.decode)], PenstockError),
        [dump((IDENTITY, {"batch": BATCH, "checkpoint_id": "1-2", "last": True})), dump(None), dump(7)],
    ),
    "state of standbys": Parser(lambda d: load(list[StandbyState], d), [bytes(STANDBYS)], again=dump),
    "what was uploaded of an outbox": Parser(lambda d: load(tuple[OutboxObject, ...], d), [dump((NAMED,))], again=dump),
    "rows in chunks": Parser(lambda d: rows_of([d], ROWS.schema).to_pylist(), [chunk(ROWS)]),
    "reason of a table build": Parser(VersionProblem.decode, [b'["no such column",3]']),
    "page of an attempt": Parser(
        lambda d: [*map(str, spots_in(d))], [PLACE.ljust(_SLOT_BYTES - 5) + orjson.dumps(["local.s"])], wrap=page_of
    ),
    "body of a request to the dashboard": Parser(read_body, [b'{"job":"a","again":true,"plan":["x"]}'], BAD_BODY),
}
