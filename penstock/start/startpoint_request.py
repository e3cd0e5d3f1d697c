"""A request for a startpoint, as the metadata store keeps it until a start takes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
import orjson
from msgspec import Meta, Struct

from penstock.api import requests
from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import decode, decoding
from penstock.base.wording import listed
from penstock.errors import ConfigError, CorruptError

NAMESPACE = "samza-startpoint-v1"
"""The namespace of requests in the metadata store; their type in Samza's coordinator stream."""
NAMESPACE_FAN_OUT = "samza-startpoint-v1-fan-out"
"""The namespace of requests that Samza has given to a task, until the task has committed them."""

_Millis: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class WrittenStartpoint(Struct, rename="camel"):
    """The fields of all kinds."""

    kind: Literal["StartpointSpecific", "StartpointTimestamp", "StartpointOldest", "StartpointUpcoming"] = (
        msgspec.field(name="@type")
    )
    creation_timestamp: _Millis
    specific_offset: str | None = None
    timestamp_offset: _Millis | None = None

    def startpoint(self) -> requests.Startpoint:
        """The startpoint. Raises CorruptError if the field of its kind is missing, ConfigError for an empty offset."""
        at = self.creation_timestamp
        match self.kind, self.specific_offset, self.timestamp_offset:
            case "StartpointSpecific", str(offset), _:
                return requests.StartpointSpecific(offset, creation_timestamp=at)
            case "StartpointTimestamp", _, int(timestamp):
                return requests.StartpointTimestamp(timestamp, creation_timestamp=at)
            case "StartpointOldest", _, _:
                return requests.StartpointOldest(creation_timestamp=at)
            case "StartpointUpcoming", _, _:
                return requests.StartpointUpcoming(creation_timestamp=at)
        raise CorruptError(f"a {self.kind} lacks the field that names its position")


class _FanOut(Struct, rename="camel"):
    fan_outs: dict[str, WrittenStartpoint]


def to_document(startpoint: requests.Startpoint) -> dict[str, object]:
    """The startpoint as a JSON object, its fields in Samza's order."""
    common = {"@type": type(startpoint).__name__, "creationTimestamp": startpoint.creation_timestamp}
    match startpoint:
        case requests.StartpointSpecific():
            return common | {"specificOffset": startpoint.specific_offset}
        case requests.StartpointTimestamp():
            return common | {"timestampOffset": startpoint.timestamp_offset}
    return common


def encode_startpoint(startpoint: requests.Startpoint) -> str:
    """The bytes Samza writes, as a text."""
    return orjson.dumps(to_document(startpoint)).decode()


def decode_startpoint(data: str | bytes) -> requests.Startpoint:
    """Read what Samza or Penstock wrote. Raises CorruptError if it is no startpoint."""
    what = f"not a startpoint, {data[:200]!r}"
    with decoding(what):
        return decode(WrittenStartpoint, data, what).startpoint()


def decode_fan_out(data: str | bytes) -> dict[SystemStreamPartition, requests.Startpoint]:
    """The startpoints that Samza has given to one task. Stream names with dots come back whole. Raises CorruptError."""
    what = f"not a fan-out of startpoints, {data[:200]!r}"
    with decoding(what):
        given = decode(_FanOut, data, what).fan_outs
        return {SystemStreamPartition.parse(ssp): own.startpoint() for ssp, own in given.items()}


WithState: TypeAlias = Literal["nearest", "clear", "keep"]
"""The state: all of it and all inputs go to the nearest retained checkpoint; it is emptied; or it stays
as it is."""
WithOutput: TypeAlias = Literal["again", "after"]
"""The output of messages that are read again: it is sent again; or nothing is sent before the old positions."""

CLOCKS_DIFFER_MS = 5 * 60_000
"""The largest difference of the clocks of two hosts. A startpoint that was made later than this is from the future."""
_UUID = re.compile(r"[0-9A-Za-z_-]+")
_KEY = re.compile(r"(?P<ssp>.+\.[0-9]+?)(?:\.(?P<task>Partition (?:0|[1-9][0-9]*)))?")
_TASK = re.compile(r"Partition (0|[1-9][0-9]{0,8})")


def task_name(task: int) -> str:
    """Samza's name of a task, by GroupByPartition."""
    return f"Partition {task}"


def task_number(name: str) -> int:
    """The inverse of `task_name`. Raises ConfigError for another name."""
    match = _TASK.fullmatch(name)
    if match is None:
        raise ConfigError(f"`{name}` is not the name of a task, which looks like `{task_name(3)}`")
    return int(match[1])


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The target of a startpoint: a partition in every task that reads it, or (`task`) in one. Written as Samza does,
    `system.stream.partition[.Partition n]`; stream names with dots round-trip."""

    ssp: SystemStreamPartition
    task: str | None = None

    def __str__(self) -> str:
        return str(self.ssp) if self.task is None else f"{self.ssp}.{self.task}"

    @classmethod
    def parse(cls, text: str) -> RequestKey:
        """Read the written form. Raises ConfigError if the text has another one."""
        match = _KEY.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"`{text}` is not the key of a startpoint, which looks like `system.stream.partition` or "
                f"`system.stream.partition.{task_name(3)}`"
            )
        return cls(SystemStreamPartition.parse(match["ssp"]), match["task"])


@dataclass(frozen=True, slots=True)
class StartpointRequest:
    """A startpoint that somebody asked for. `uuid` tells requests with the same key apart; the checkpoint of the start
    that takes it remembers it.

    `with_state` is what is to become of the state; None: nobody said, any other request may. `with_output` is the same
    for the output. `clamp` accepts the
    nearest offset instead of one that is not there. `accept_state` declares that the state agrees with positions that
    were moved while it stayed. `from_future` is set where requests are read: by the reader's clock, the request has not
    been made yet.

    Raises:
        ConfigError: it could be written but not read.
    """

    key: RequestKey
    uuid: str
    startpoint: requests.Startpoint
    with_state: WithState | None = None
    clamp: bool = False
    with_output: WithOutput | None = None
    accept_state: bool = False
    from_future: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.startpoint) not in requests.KINDS:
            kinds = listed([f"ps.{kind.__name__}" for kind in requests.KINDS])
            raise ConfigError(
                f"a startpoint for `{self.key}` is {self.startpoint!r}, an object of "
                f"{type(self.startpoint).__name__}: no start could read it. Give one of {kinds}"
            )
        if self.with_state not in (None, *get_args(WithState)):
            raise ConfigError(f"with_state is one of {listed(get_args(WithState))}, not {self.with_state!r}")
        if self.with_output not in (None, *get_args(WithOutput)):
            raise ConfigError(f"with_output is one of {listed(get_args(WithOutput))}, not {self.with_output!r}")
        if type(self.clamp) is not bool:
            raise ConfigError(f"clamp is True or False, not {self.clamp!r}")
        if type(self.accept_state) is not bool:
            raise ConfigError(f"accept_state is True or False, not {self.accept_state!r}")
        if self.accept_state and self.with_state == "clear":
            raise ConfigError(
                'accept_state declares that the state is right, and with_state="clear" empties it: leave one out'
            )
        if not _UUID.fullmatch(self.uuid) or RequestKey.parse(str(self.key)) != self.key:
            raise ConfigError(f"`{self.key}/{self.uuid}` does not name a startpoint")

    @property
    def rank(self) -> tuple[bool, int, bool, str]:
        """Among several that apply to a partition of a task, the largest counts: the last one made, and of
        two made at once that of the task. The uuid makes it total, so that everybody decides alike, and of two that a
        process made in the same millisecond, the later one counts. One from the future goes behind all others: nobody
        knows when it was made, and a wrong clock must not outrank every later request."""
        created = self.startpoint.creation_timestamp
        return not self.from_future, created, self.key.task is not None, self.uuid

    def is_expired(self, now_ms: int, ttl_ms: int) -> bool:
        return now_ms - self.startpoint.creation_timestamp >= ttl_ms

    def __str__(self) -> str:
        return f"`{self.key}`, {describe(self.startpoint)}"


def kind_and_value(startpoint: requests.Startpoint) -> tuple[str, str | int | None]:
    """`specific`, `timestamp`, `oldest` or `upcoming`; and the offset, or epoch milliseconds."""
    kind = type(startpoint).__name__.removeprefix("Startpoint").lower()
    match startpoint:
        case requests.StartpointSpecific(specific_offset=offset):
            return kind, offset
        case requests.StartpointTimestamp(timestamp_offset=timestamp):
            return kind, timestamp
    return kind, None


def describe(startpoint: requests.Startpoint) -> str:
    """The startpoint in words, as commands print it."""
    kind, value = kind_and_value(startpoint)
    return kind if value is None else f"{'offset' if kind == 'specific' else kind} {value}"


def encode_request(request: StartpointRequest) -> bytes:
    """The stored bytes: Samza's JSON of the startpoint, and fields that Samza does not have where they are set."""
    document = to_document(request.startpoint)
    if request.with_state is not None:
        document["withState"] = request.with_state
    if request.clamp:
        document["clamp"] = True
    if request.with_output is not None:
        document["withOutput"] = request.with_output
    if request.accept_state:
        document["acceptState"] = True
    return orjson.dumps(document)


def is_from_future(startpoint: requests.Startpoint, now_ms: int) -> bool:
    """True if it was made later than any clock can show now."""
    return startpoint.creation_timestamp > now_ms + CLOCKS_DIFFER_MS


@dataclass(frozen=True, slots=True)
class UnreadableRequest:
    """An object among the requests that is none. `key` is what it is for, if its name says so."""

    path: str
    key: RequestKey | None
    problem: str

    def __str__(self) -> str:
        how = (
            f"delete the object `{self.path}` of the job's root" if self.key is None else f"`{how_to_delete(self.key)}`"
        )
        return (
            f"the startpoint in `{self.path}` is left out, because it cannot be read: {self.problem}. To delete it: "
            f"{how}"
        )


def how_to_delete(key: RequestKey) -> str:
    """The command that deletes the requests of a key."""
    task = "" if key.task is None else f" --task '{key.task}'"
    where = f"--stream {key.ssp.system_stream} --partition {key.ssp.partition}{task}"
    return f"penstock startpoint delete JOB {where}"


def decode_request(key: str, uuid: str, data: bytes) -> StartpointRequest:
    """Read what is stored under a key.

    Raises:
        CorruptError: this is no request.
    """
    try:
        own = decode(_WrittenRequest, data, "it is damaged")
        key_of, startpoint = RequestKey.parse(key), own.startpoint()
        return StartpointRequest(key_of, uuid, startpoint, own.with_state, own.clamp, own.with_output, own.accept_state)
    except (CorruptError, ConfigError) as error:
        raise CorruptError(str(error)) from error


class _WrittenRequest(WrittenStartpoint, rename="camel"):
    """The stored document: Samza's fields, and those that Samza does not have."""

    with_state: WithState | None = None
    clamp: bool = False
    with_output: WithOutput | None = None
    accept_state: bool = False
