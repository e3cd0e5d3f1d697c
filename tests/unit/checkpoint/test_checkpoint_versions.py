"""The versions of a checkpoint that are written and read, and Samza's forms of them, against golden files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim
from penstock.checkpoint.samza import CheckpointLogKey
from penstock.checkpoint.streams import CHANGELOG_STREAM, SAMZA_BACKEND, ChangelogOffset, ChangelogStreamMarker
from penstock.checkpoint.task_values import CheckpointV1, CheckpointV2
from penstock.checkpoint.task_versions import (
    build_versions,
    choose_newest,
    choose_version,
    markers_elsewhere,
    markers_of,
    needed_markers,
    read_task,
    samza_value,
    versions_of,
)
from penstock.config.load import load_config
from penstock.errors import ConfigError, CorruptError, IncompatibleError
from tests.support.stores.checkpoints import checkpoint
from tests.support.tools.places import GOLDEN

SSP = SystemStreamPartition
ID = CheckpointId(1614147487244, 33577)
INPUT = SSP("kafka", "orders", 3)
ORDERS = ChangelogStreamMarker(SSP("kafka", "orders-changelog", 3), "1017")
TOTALS = ChangelogStreamMarker(SSP("kafka", "totals-changelog", 3), None)
STREAMED = {"orders": ORDERS.serialize(), "totals": TOTALS.serialize()}
MARKERS = {CHANGELOG_STREAM: STREAMED, "changelog-files": {"orders": "delta"}}
CHANGELOGS = {ORDERS.ssp: "orders", TOTALS.ssp: "totals"}
CLAIM = Claim(1, "run", "w")


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.json").read_text("utf-8")


def record(values: dict[str, str], number: int = ID.millis) -> CheckpointRecord:
    return replace(checkpoint(CLAIM, number), id=CheckpointId(number, ID.nanos), task_count=1, tasks={0: values})


# ---- the written forms


@pytest.mark.parametrize("version", [1, 2])
def test_golden_versions_of_a_task(version: int) -> None:
    built = build_versions(ID, {INPUT: "42"}, MARKERS, (version, 2))
    assert built[str(version)] == golden(f"task-checkpoint-v{version}")


@pytest.mark.parametrize(
    ("name", "marker"),
    [
        ("changelog-marker", ORDERS),
        ("changelog-marker-empty", replace(ORDERS, offset=None)),
        ("changelog-marker-generation", ChangelogStreamMarker(SSP("local", "orders.changelog", 0), "1017", "900")),
    ],
)
def test_golden_changelog_markers(name: str, marker: ChangelogStreamMarker) -> None:
    assert marker.serialize() == golden(name)
    assert ChangelogStreamMarker.parse(golden(name)) == marker


@pytest.mark.parametrize(("version", "task"), [(1, 0), (2, 11)])
def test_golden_keys(version: int, task: int) -> None:
    key = CheckpointLogKey.of(task, version)
    assert key.encode() == golden(f"checkpoint-key-v{version}")
    assert CheckpointLogKey.decode(golden(f"checkpoint-key-v{version}")) == key
    assert key.version == version


def test_a_key_of_a_later_version_is_to_be_skipped() -> None:
    later = '{"type":"checkpoint-v3","taskName":"Partition 0","systemstreampartition-grouper-factory":"g","more":1}'
    assert CheckpointLogKey.decode(later).version is None
    for text in ("", "[]", "{}", later.replace("Partition 0", "")):
        with pytest.raises(CorruptError, match="key"):
            CheckpointLogKey.decode(text)


@pytest.mark.parametrize("text", ["", "1-2", "1-2:", ":5", "1-2:5:6", "x:5", "1:5"])
def test_positions_of_changelogs(text: str) -> None:
    assert str(ChangelogOffset(ID, None)) == "1614147487244-33577:null"
    assert ChangelogOffset.parse("1614147487244-33577:null") == ChangelogOffset(ID, None)
    assert ChangelogOffset.parse("1614147487244-33577:17") == ChangelogOffset(ID, "17")
    with pytest.raises(CorruptError, match="position"):
        ChangelogOffset.parse(text)


@pytest.mark.parametrize(
    "change",
    [
        {"changelog-ssp": None},
        {"changelog-ssp": {"system": "s", "stream": "t", "partition": "3"}},
        {"changelog-ssp": {"system": "s", "partition": 3}},
        {"changelog-offset": 5},
        {"generation-offset": 5},
    ],
)
def test_damaged_changelog_markers(change: dict[str, object]) -> None:
    good = orjson.loads(golden("changelog-marker"))
    assert ChangelogStreamMarker.parse(orjson.dumps(good | {"later": 1}).decode()) == ORDERS
    with pytest.raises(CorruptError, match="changelog stream marker"):
        ChangelogStreamMarker.parse(orjson.dumps(good | change).decode())
    with pytest.raises(CorruptError, match="changelog stream marker"):
        ChangelogStreamMarker.parse("[]")


# ---- writing


def test_versions_are_in_the_order_of_the_key() -> None:
    assert list(build_versions(ID, {}, {}, (2, 1))) == ["2", "1"]


def test_what_a_checkpoint_shows_cannot_be_changed() -> None:
    own = {INPUT: "42"}
    for made in (CheckpointV1(own), CheckpointV2(ID, own, {"blob": {"s": "m"}})):
        views: list[Any] = [made.offsets] if isinstance(made, CheckpointV1) else [made.offsets, made.markers["blob"]]
        for view in views:
            with pytest.raises(TypeError, match="item assignment"):
                view[INPUT] = "43"
    own[INPUT] = "43"
    assert made.offsets == {INPUT: "42"}
    assert list(build_versions(ID, {}, {}, (1,))) == ["1"]
    with pytest.raises(ConfigError, match="version 3"):
        build_versions(ID, {}, {}, (2, 3))


def test_v1_alone_is_refused_where_it_would_lose_a_store() -> None:
    build_versions(ID, {}, MARKERS, (1,))
    with pytest.raises(ConfigError, match=r"`counts`.*task\.checkpoint\.write\.versions"):
        build_versions(ID, {}, {**MARKERS, "blob": {"counts": "index"}}, (1,))


# ---- reading


def test_a_task_is_read_from_either_version() -> None:
    written = record(build_versions(ID, {INPUT: "42"}, MARKERS, (1, 2)))
    assert versions_of(written) == {1, 2}
    second = read_task(written, 0, 2, CHANGELOGS)
    assert (second.offsets, second.markers) == ({INPUT: "42"}, MARKERS)
    first = read_task(written, 0, 1, CHANGELOGS)
    assert (first.offsets, first.markers) == ({INPUT: "42"}, {CHANGELOG_STREAM: STREAMED})
    assert read_task(written, 7, 2, CHANGELOGS).offsets == {}


def test_v1_without_changelogs_has_no_markers_and_null_offsets_are_none() -> None:
    written = record({"1": CheckpointV1({INPUT: "42", SSP("s", "t", 0): None}).encode()})
    task = read_task(written, 0, 1, {})
    assert (task.offsets, task.markers) == ({INPUT: "42"}, {})


def test_markers_under_samzas_name_are_those_of_the_backend() -> None:
    written = record(build_versions(ID, {}, MARKERS, (2,)))
    assert SAMZA_BACKEND in CheckpointV2.decode(written.tasks[0]["2"]).markers
    assert markers_of(written, 0) == MARKERS


def test_samzas_value_of_a_version_that_was_not_written() -> None:
    both = build_versions(ID, {INPUT: "42"}, MARKERS, (1, 2))
    assert samza_value(record({"2": both["2"]}), 0, 1) == both["1"]
    assert samza_value(record(both), 0, 2) == both["2"]
    assert samza_value(record({"1": both["1"]}), 0, 2) is None
    assert samza_value(record({}), 0, 1) is None


def test_what_any_version_needs_stays() -> None:
    """A position in a stream that the configuration no longer names stays; an offset of an input does not."""
    first = record(build_versions(ID, {INPUT: "42"}, {CHANGELOG_STREAM: STREAMED}, (1,)))
    kept = {store: (marker,) for store, marker in STREAMED.items()}
    assert needed_markers(first, 0, CHANGELOGS) == {CHANGELOG_STREAM: kept}
    renamed = {"orders-changelog": kept["orders"], "totals-changelog": kept["totals"]}
    assert needed_markers(first, 0, {}) == {CHANGELOG_STREAM: renamed}
    second = record(build_versions(ID, {INPUT: "42"}, MARKERS, (2,)))
    assert needed_markers(second, 0, {}) == {CHANGELOG_STREAM: kept, "changelog-files": {"orders": ("delta",)}}
    both = record(build_versions(ID, {INPUT: "42"}, MARKERS, (1, 2)))
    assert needed_markers(both, 0, CHANGELOGS)["changelog-files"] == {"orders": ("delta",)}
    assert set(needed_markers(both, 0, CHANGELOGS)[CHANGELOG_STREAM]["orders"]) == {STREAMED["orders"]}
    assert needed_markers(first, 7, CHANGELOGS) == {}


# ---- choosing


@pytest.mark.parametrize(
    ("there", "read", "chosen"),
    [
        ("2@10 2@20", (2, 1), (20, 2)),
        ("12@10", (2, 1), (10, 2)),
        ("12@10", (1, 2), (10, 1)),
        ("1@10 2@20", (2, 1), (20, 2)),
        ("2@10 1@20", (2, 1), (20, 1)),
        ("1@10 2@20", (1, 2), (20, 2)),
        ("2@10 12@20", (1,), (20, 1)),
    ],
)
def test_a_start_begins_with_the_newest_checkpoint_in_the_preferred_version_that_it_has(
    there: str, read: tuple[int, ...], chosen: tuple[int, int]
) -> None:
    found = choose_newest(records(there), read)
    assert found is not None
    assert (found.id.millis, choose_version(found, read)) == chosen


def test_a_version_counts_only_if_every_task_has_it() -> None:
    half = replace(record({"1": "{}", "2": "{}"}), task_count=2, tasks={0: {"1": "{}", "2": "{}"}, 1: {"1": "{}"}})
    assert versions_of(half) == {1}
    assert choose_version(half, (2, 1)) == 1


def test_a_hint_names_the_backends_whose_markers_only_another_version_keeps() -> None:
    both = record(build_versions(ID, {INPUT: "42"}, MARKERS, (1, 2)))
    assert markers_elsewhere(both, (1,)) == (
        ". Version 2 of the checkpoint has markers of `changelog-files`: to restore from them, set "
        "task.checkpoint.read.versions to 2,1; it is 1 now"
    )
    assert markers_elsewhere(both, (2, 1)) == "", "version 2 keeps all markers"
    streams = record(build_versions(ID, {INPUT: "42"}, {CHANGELOG_STREAM: STREAMED}, (1, 2)))
    assert markers_elsewhere(streams, (1, 2)) == "", "version 1 has them as well"
    assert markers_elsewhere(record(build_versions(ID, {}, {CHANGELOG_STREAM: STREAMED}, (1,))), (1,)) == ""


@pytest.mark.parametrize("damaged", ["1", "2"])
def test_a_damaged_version_gives_no_hint_in_place_of_the_error(damaged: str) -> None:
    values = {**build_versions(ID, {}, {CHANGELOG_STREAM: STREAMED, "blob": {"totals": "m"}}, (1, 2)), damaged: "{"}
    other = 2 if damaged == "1" else 1
    assert markers_elsewhere(record(values), (other, int(damaged))) == ""


def test_no_checkpoint_and_none_that_may_be_read() -> None:
    assert choose_newest([], (2, 1)) is None
    with pytest.raises(IncompatibleError, match=r"task\.checkpoint\.read\.versions allows \(2\).*has: 1\."):
        choose_version(record({"1": "{}"}), (2,))
    with pytest.raises(IncompatibleError, match=r"10-33577 has no version .* has: none\."):
        choose_newest(records("3@10"), (2, 1))


@pytest.mark.parametrize(
    ("there", "read", "parts"),
    [
        ("2@10 1@20", (2,), ("back to checkpoint 10-33577", "add 1 to task.checkpoint.read.versions")),
        ("1@10 3@20", (2, 1), ("back to checkpoint 10-33577", "20-33577 (version none)")),
        (
            "2@10 12@15 2@20 2@30",
            (1,),
            ("20-33577 (version 2), 30-33577", '`from_checkpoint="15-33577"`', "add 2 to task.checkpoint.read"),
        ),
        ("2@1 " + " ".join(f"1@{n}" for n in range(2, 22)), (2,), ("10 more, and 12-33577",)),
    ],
)
def test_a_start_passes_over_no_newer_checkpoint(there: str, read: tuple[int, ...], parts: tuple[str, ...]) -> None:
    with pytest.raises(IncompatibleError) as refused:
        choose_newest(records(there), read)
    for part in parts:
        assert part in str(refused.value)


@given(st.lists(st.sampled_from(["1", "2", "12"]), min_size=1))
def test_the_newest_checkpoint_is_chosen_whichever_version_others_have(there: list[str]) -> None:
    made = records(" ".join(f"{versions}@{10 * number}" for number, versions in enumerate(there)))
    assert choose_newest(made, (2, 1)) == made[-1]


def records(there: str) -> list[CheckpointRecord]:
    """`12@10` stands for a checkpoint of the time 10 with the versions 1 and 2."""
    pairs = (each.split("@") for each in there.split())
    return [record(dict.fromkeys(versions, "{}"), int(time)) for versions, time in pairs]


def test_the_keys() -> None:
    task = load_config(overrides={"job.name": "a"}, environ={}).task
    assert (task.checkpoint_write_versions, task.checkpoint_read_versions) == ((2,), (2, 1))
    overrides = {"job.name": "a", "task.checkpoint.read.versions": "1", "task.checkpoint.write.versions": "1,2"}
    task = load_config(overrides=overrides, environ={}).task
    assert (task.checkpoint_write_versions, task.checkpoint_read_versions) == ((1, 2), (1,))


def test_v1_says_nothing_of_a_store_whose_history_does_not_begin_with_the_stream() -> None:
    """Read back without its generation, it would take in what another history wrote before."""
    later = ChangelogStreamMarker(ORDERS.ssp, "1017", "50").serialize()
    first = ChangelogStreamMarker(TOTALS.ssp, "7", "0").serialize()
    built = build_versions(ID, {INPUT: "42"}, {CHANGELOG_STREAM: {"orders": later, "totals": first}}, (2, 1))
    found = read_task(record(built), 0, 1, CHANGELOGS)
    assert (dict(found.offsets), list(found.markers[CHANGELOG_STREAM])) == ({INPUT: "42"}, ["totals"])
    with pytest.raises(ConfigError, match="`orders`"):
        build_versions(ID, {INPUT: "42"}, {CHANGELOG_STREAM: {"orders": later}}, (1,))
