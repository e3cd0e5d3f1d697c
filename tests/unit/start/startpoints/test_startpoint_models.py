"""The four startpoints, their visitor, what systems make of them, and Samza's JSON of them."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.requests import (
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
    StartpointVisitor,
)
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError
from penstock.start.startpoint_request import (
    RequestKey,
    StartpointRequest,
    decode_fan_out,
    decode_request,
    decode_startpoint,
    encode_request,
    encode_startpoint,
)
from penstock.system.base import System, SystemAdmin
from penstock.system.local import LocalSystem
from penstock.system.memory import MemoryAdmin, MemorySystem
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.places import GOLDEN

SSP = SystemStreamPartition
AT = 1614147487244
EACH: dict[str, Startpoint] = {
    "specific": StartpointSpecific("1200", creation_timestamp=AT),
    "timestamp": StartpointTimestamp(1370044800000, creation_timestamp=AT),
    "oldest": StartpointOldest(creation_timestamp=AT),
    "upcoming": StartpointUpcoming(creation_timestamp=AT),
}


# Models.


def test_a_startpoint_is_made_now_unless_it_says_otherwise() -> None:
    before = time.time_ns() // 1_000_000
    made = ps.StartpointOldest()
    assert before <= made.creation_timestamp <= time.time_ns() // 1_000_000
    assert ps.StartpointOldest(creation_timestamp=5) == ps.StartpointOldest(creation_timestamp=5)
    assert ps.StartpointOldest(creation_timestamp=5) != ps.StartpointOldest(creation_timestamp=6)
    upcoming: ps.Startpoint = ps.StartpointUpcoming(creation_timestamp=5)
    assert upcoming != ps.StartpointOldest(creation_timestamp=5)


@pytest.mark.parametrize("wrong", [None, "", 12, "\ud800"])
def test_an_offset_is_a_text(wrong: object) -> None:
    with pytest.raises(ConfigError, match="offset"):
        StartpointSpecific(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, "12", 1.5, True, 2**70, 2**63, -(2**63) - 1])
def test_times_are_whole_numbers_of_64_bits(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="a startpoint's timestamp is "):
        StartpointTimestamp(wrong)
    for kind in (
        partial(StartpointSpecific, "1"),
        partial(StartpointTimestamp, 1),
        StartpointOldest,
        StartpointUpcoming,
    ):
        with pytest.raises(ConfigError, match="a startpoint's creation time is "):
            kind(creation_timestamp=wrong)


class Named(StartpointVisitor[str, str]):
    """Knows two of the four."""

    def visit_specific(self, given: str, startpoint: StartpointSpecific) -> str:
        return f"{given} {startpoint.specific_offset}"

    def visit_oldest(self, given: str, startpoint: StartpointOldest) -> str:
        return f"{given} oldest"


def test_a_visitor_is_called_by_kind_and_refuses_the_others() -> None:
    assert EACH["specific"].apply("at", Named()) == "at 1200"
    assert EACH["oldest"].apply("at", Named()) == "at oldest"
    for kind in ("timestamp", "upcoming"):
        with pytest.raises(IncompatibleError, match=f"Startpoint{kind.capitalize()} is not supported by Named"):
            EACH[kind].apply("at", Named())


# Samza's JSON.


@pytest.mark.parametrize("kind", EACH)
def test_the_json_is_samzas(kind: str) -> None:
    golden = (GOLDEN / f"startpoint-{kind}.json").read_text()
    assert encode_startpoint(EACH[kind]) == golden
    assert decode_startpoint(golden) == EACH[kind]
    assert decode_startpoint(golden.replace("{", '{"unknown":1,', 1)) == EACH[kind]


def test_a_fan_out_of_samza_is_read_with_dots_in_names() -> None:
    found = decode_fan_out((GOLDEN / "startpoint-fan-out.json").read_bytes())
    assert found == {
        SSP("kafka", "dep.flights", 3): EACH["specific"],
        SSP("kafka", "other", 3): StartpointOldest(creation_timestamp=AT + 1),
    }


def test_a_request_is_samzas_json_and_what_samza_does_not_have() -> None:
    key = RequestKey(SSP("local", "a.b", 0))
    plain = StartpointRequest(key, "u", EACH["specific"])
    assert encode_request(plain).decode() == (GOLDEN / "startpoint-specific.json").read_text()
    full = StartpointRequest(key, "u", EACH["specific"], "nearest", clamp=True)
    golden = (GOLDEN / "startpoint-request.json").read_bytes()
    assert encode_request(full) == golden
    assert decode_startpoint(golden) == full.startpoint, "Samza reads its own part of it"
    for request in (plain, full):
        assert decode_request(str(key), "u", encode_request(request)) == request


class Newest(StartpointOldest):
    """A kind of an application's own, which no start would know."""


class Everywhere(Startpoint):
    """Another one."""

    def apply(self, given: Any, visitor: Any) -> Any:
        return {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"startpoint": Newest()}, r"an object of Newest: no start could read it. Give one of ps.StartpointSpecific"),
        ({"startpoint": Everywhere()}, "an object of Everywhere"),
        ({"startpoint": "oldest"}, "an object of str"),
        ({"with_state": "newest"}, "with_state is one of nearest, clear and keep, not 'newest'"),
        ({"clamp": "yes"}, "clamp is True or False"),
        ({"uuid": "a/b"}, "does not name a startpoint"),
        ({"uuid": ""}, "does not name a startpoint"),
        ({"key": RequestKey(SSP("local", "a", 0), "Partition 01")}, "`local.a.0.Partition 01`|does not name"),
        ({"key": RequestKey(SSP("local", "a", -1))}, "is not the key of a startpoint"),
    ],
)
def test_what_a_start_could_not_read_is_no_request(wrong: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"key": RequestKey(SSP("local", "a", 0)), "uuid": "u", "startpoint": EACH["oldest"]}
    with pytest.raises(ConfigError, match=said):
        StartpointRequest(**{**given, **wrong})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"@type":"StartpointNewest","creationTimestamp":1}',
        '{"@type":"StartpointOldest"}',
        '{"@type":"StartpointOldest","creationTimestamp":"1"}',
        '{"@type":"StartpointTimestamp","creationTimestamp":1,"timestampOffset":null}',
        '{"@type":"StartpointSpecific","creationTimestamp":1,"specificOffset":null}',
        '{"@type":"StartpointOldest","creationTimestamp":1,"withState":"none"}',
        '{"@type":"StartpointOldest","creationTimestamp":1,"clamp":"yes"}',
    ],
)
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(CorruptError):
        decode_request("local.a.0", "u", text.encode())


@pytest.mark.parametrize("task", [None, "Partition 0", "Partition 17"])
@pytest.mark.parametrize("stream", ["flights", "dep.flights", "dep.flights.3", "3", "a b", "Partition 3"])
def test_keys_round_trip(stream: str, task: str | None) -> None:
    key = RequestKey(SSP("local", stream, 3), task)
    assert RequestKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "local.flights", "flights.3", "local.flights.x", "local.flights.3.Partition x"])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(ConfigError):
        RequestKey.parse(text)


# What systems make of them.

STREAM = "dep.flights"


@pytest.fixture(params=["local", "memory"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    """Partition 0: offsets 0 to 9 at 1000, 1010, ...; 1: empty; 2: as 0, the first four gone."""
    made: System = LocalSystem("local", str(tmp_path)) if request.param == "local" else MemorySystem("local")
    admin, writer = made.admin(), made.writer(None)
    admin.create_stream(STREAM, 3)
    for partition in (0, 2):
        writer.append(SSP("local", STREAM, partition), [(1000 + 10 * n, None, b"v") for n in range(10)])
    from penstock.system.base import OffsetRange, WriterIdentity

    admin.compact(OffsetRange(SSP("local", STREAM, 2), 4, 4), WriterIdentity("test", 1))
    writer.close()
    admin.close()
    return made


admin = fixture_of(lambda system: system.admin())
"""Its admin."""


RESOLVED: list[tuple[Startpoint, tuple[int, int, int]]] = [
    (StartpointOldest(), (0, 0, 4)),
    (StartpointUpcoming(), (10, 0, 10)),
    (StartpointTimestamp(0), (0, 0, 4)),
    (StartpointTimestamp(1035), (4, 0, 4)),
    (StartpointTimestamp(1040), (4, 0, 4)),
    (StartpointTimestamp(1041), (5, 0, 5)),
    (StartpointTimestamp(1090), (9, 0, 9)),
    (StartpointTimestamp(1091), (10, 0, 10)),
]


@pytest.mark.parametrize(("startpoint", "expected"), RESOLVED)
def test_resolved_in_each_partition(admin: SystemAdmin, startpoint: Startpoint, expected: tuple[int, ...]) -> None:
    """Before the first and after the last message, in an empty partition, and where the beginning is gone."""
    found = [admin.resolve_startpoint_to_offset(SSP("local", STREAM, n), startpoint) for n in range(3)]
    assert tuple(found) == expected


@pytest.mark.parametrize(("partition", "offset"), [(0, 0), (0, 9), (0, 10), (1, 0), (2, 4), (2, 10)])
def test_a_specific_offset_is_inclusive(admin: SystemAdmin, partition: int, offset: int) -> None:
    ssp = SSP("local", STREAM, partition)
    assert admin.resolve_startpoint_to_offset(ssp, StartpointSpecific(str(offset))) == offset


@pytest.mark.parametrize(
    ("partition", "offset", "nearest", "said"),
    [
        (0, 11, 10, "messages from 0 (oldest) to 9 (newest), the next one will be 10"),
        (0, -1, 0, "messages from 0 (oldest) to 9 (newest)"),
        (1, 1, 0, "no messages, the next one will be 0"),
        (2, 3, 4, "messages from 4 (oldest) to 9 (newest)"),
    ],
)
def test_an_offset_that_is_not_there_is_refused_or_clamped(
    admin: SystemAdmin, partition: int, offset: int, nearest: int, said: str
) -> None:
    ssp, startpoint = SSP("local", STREAM, partition), StartpointSpecific(str(offset))
    with pytest.raises(IncompatibleError) as failed:
        admin.resolve_startpoint_to_offset(ssp, startpoint)
    assert said in str(failed.value)
    assert "clamp=True" in str(failed.value)
    assert str(ssp) in str(failed.value)
    assert admin.resolve_startpoint_to_offset(ssp, startpoint, clamp=True) == nearest


class NamedAdmin(MemoryAdmin):
    """Its messages are known by names."""

    def named_offset(self, ssp: SystemStreamPartition, name: str) -> int:
        return ["first", "second", "third"].index(name)


def test_a_text_may_name_an_offset() -> None:
    system = MemorySystem("local")
    admin, ssp = NamedAdmin(system), SSP("local", STREAM, 0)
    admin.create_stream(STREAM, 1)
    system.writer(None).append(ssp, [(0, None, b"v")])
    assert admin.resolve_startpoint_to_offset(ssp, StartpointSpecific("second")) == 1
    with pytest.raises(IncompatibleError, match="cannot be read from offset third"):
        admin.resolve_startpoint_to_offset(ssp, StartpointSpecific("third"))
    assert admin.resolve_startpoint_to_offset(ssp, StartpointSpecific("third"), clamp=True) == 1


def test_what_is_no_offset_or_no_partition(admin: SystemAdmin) -> None:
    with pytest.raises(IncompatibleError, match="not an offset"):
        admin.resolve_startpoint_to_offset(SSP("local", STREAM, 0), StartpointSpecific("abc"), clamp=True)
    for startpoint in EACH.values():
        with pytest.raises(NotFoundError, match="3 partitions"):
            admin.resolve_startpoint_to_offset(SSP("local", STREAM, 3), startpoint)
        with pytest.raises(NotFoundError):
            admin.resolve_startpoint_to_offset(SSP("local", "nothing", 0), startpoint)
