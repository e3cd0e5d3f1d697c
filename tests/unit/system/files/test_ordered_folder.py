"""A folder that is read in the order of its names."""

from __future__ import annotations

import json
import logging
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.config.load import load_config
from penstock.errors import ConfigError, IncompatibleError, PenstockError
from penstock.objects.open import open_store
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.files.folders import Folder
from penstock.system.files.listing import name_order
from penstock.system.registry import open_systems
from penstock.testing.in_process import InProcessDriver
from tests.support.streams.folder import STREAM, Room, jsonl, of

DAY_MS = 86_400_000
ORDER = {"order": "name", "partitions": 3}


def numbers(room: Room) -> list[int]:
    """The rows in the order of their offsets: one number each."""
    with closing(room.system(**ORDER).admin()) as admin:
        ends = admin.offsets(STREAM)
    assert [end.upcoming for end in ends.values()][1:] == [0, 0]
    assert [end.ended for end in ends.values()] == [False, True, True]
    with closing(room.system(**ORDER).reader()) as reader:
        return [json.loads(row[3] or b"")["n"] for chunk in reader.read(of(0, 0, ends[0].upcoming), 7) for row in chunk]


def name(number: int) -> str:
    return f"week={number // 7}/day-{number}.json"


@pytest.mark.parametrize("seed", range(3))
def test_all_rows_come_in_the_order_of_names_whatever_is_listed_when(room: Room, seed: int) -> None:
    """Days are written in their order, in portions; the times of change, sizes and looks are any."""
    rng, written, seen = random.Random(seed), 0, list[int]()
    while written < 30:
        portion = rng.randrange(1, 8)
        days = list(range(written, written + portion))
        rng.shuffle(days)  # they are all there before the next look
        for day in days:
            rows = [{"n": 100 * day + row} for row in range(rng.randrange(1, 9))]
            room.put(name(day), jsonl(rows), modified_s=rng.randrange(1_600_000_000, 1_700_000_000))
        written += portion
        found = numbers(room)
        assert found[: len(seen)] == seen, "every offset stays what it was"
        seen = found
    assert seen == sorted(seen)
    assert len({n // 100 for n in seen}) == written


def test_a_look_that_misses_a_file_and_finds_a_later_one(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a folder is listed, both come: one where the look has been, one where it comes to."""
    room.put("day=1/a.json", b'{"n":1}')
    (room.folder / "day=2").mkdir()
    infos, waits = Folder._infos, ["day=2"]

    def listing(folder: Folder, path: str, *, recursive: bool) -> Any:
        found = infos(folder, path, recursive=recursive)
        if waits and path.endswith(waits[0]):  # the folders are looked at from the last one on
            waits.clear()
            room.put("day=2/b.json", b'{"n":2}')
            room.put("day=1/z.json", b'{"n":3}')
        return found

    monkeypatch.setattr(Folder, "_infos", listing)
    room.put("day=3/c.json", b'{"n":4}')
    assert numbers(room) == [1, 3, 2, 4]


def test_a_file_that_comes_too_late_is_read_behind_with_a_warning(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.put("day-2.json", b'{"n":2}')
    assert numbers(room) == [2]
    room.put("day-1.json", b'{"n":1}')
    room.put("day-3.json", b'{"n":3}')
    with caplog.at_level(logging.WARNING):
        assert numbers(room) == [2, 1, 3]
    assert "1 file came after others that are behind by the order of names" in caplog.text
    assert "day-1.json" in caplog.text


@given(st.lists(st.text("a1-/0.²", min_size=1, max_size=6), min_size=3, max_size=3))
def test_names_have_one_order(names: list[str]) -> None:
    one, two, three = sorted(names, key=name_order)
    assert name_order(one) <= name_order(two) <= name_order(three)
    assert (name_order(one) == name_order(two)) == (one == two)


def test_an_order_is_that_of_the_listing(room: Room) -> None:
    room.put("a.json", b'{"n":1}')
    room.ends(partitions=3)
    with closing(room.system().admin()) as admin:
        assert not admin.keeps_order(STREAM)
    with closing(room.system(**ORDER).admin()) as admin, pytest.raises(IncompatibleError, match="was listed without"):
        admin.offsets(STREAM)
    other = {"listing": room.home / "others"}
    with closing(room.system(**ORDER, **other).admin()) as admin:
        assert admin.offsets(STREAM)[1].ended
        assert admin.keeps_order(STREAM)
    room.put("b.json", b'{"n":2}')
    with closing(room.system(**other).admin()) as admin:  # as other keys, it need not be said again
        assert [end.upcoming >> 32 for end in admin.offsets(STREAM).values()] == [2, 0, 0]
    with pytest.raises(ConfigError, match="it is `name`, or left out"):
        room.system(order="time")


def test_folders_that_penstock_writes_have_their_own_order(room: Room) -> None:
    ordered = room.system(**ORDER, schema="n INT")
    with pytest.raises(ConfigError, match="outputs have the order of their commits"):
        ordered.writer(WriterIdentity("w", 1))
    writer = room.system(partitions=3, schema="n INT", listing=room.home / "others").writer(None)
    writer.append(of(0, 0, 0).ssp, [(0, None, b'{"n":1}')])
    writer.close()
    with closing(ordered.admin()) as admin, pytest.raises(ConfigError, match="is a folder that Penstock writes"):
        admin.offsets(STREAM)
    assert not list((room.home / "jobs").rglob("log/*")), "nothing was listed in an order that it does not have"


class DeadError(PenstockError):
    """The driver has died."""


def rolling() -> ps.StreamApplication:
    app = ps.StreamApplication("rolling")
    rides = app.input("in.rides", timestamp=lambda ride: ride["at_ms"], watermark=ps.BoundedOutOfOrderness("1d"))
    window = ps.Windows.sliding(
        "7d", emit="each", aggregates={"sum": ps.Sum(lambda ride: ride["km"]), "ride": ps.Last()}
    )
    sums = rides.partition_by(lambda ride: ride["user"], id="by-user").window(window, id="week")
    sums.map(lambda pane: [pane.message["ride"], pane.message["sum"]], id="shown").send_to(app.output("local.out"))
    return app


@pytest.mark.parametrize("deaths", [0, 3])
def test_a_rolling_total_knows_no_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int) -> None:
    """As a plain program that reads the days one after the other; also if drivers die and files come meanwhile."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    rng, folder = random.Random(deaths), tmp_path / "data" / "rides"
    folder.mkdir(parents=True)
    rides: list[dict[str, Any]] = [
        {"user": rng.choice("abc"), "km": rng.randrange(9), "at_ms": DAY_MS * day + 1000 * row, "n": 100 * day + row}
        for day in range(12)
        for row in range(rng.randrange(1, 30))
    ]
    expected = {
        ride["n"]: sum(
            each["km"]
            for each in rides[: at + 1]
            if each["user"] == ride["user"] and ride["at_ms"] - 7 * DAY_MS < each["at_ms"]
        )
        for at, ride in enumerate(rides)
    }
    config = load_config(
        overrides={
            "job.name": "rolling",
            "job.root": str(tmp_path / "jobs"),
            "job.batch.max.messages": 17,
            "task.commit.ms": 0,
            "systems.in.samza.factory": "files",
            "systems.in.folder": str(tmp_path / "data"),
            "systems.in.partitions": 3,
            "systems.in.order": "name",
        }
    )
    found: dict[int, set[int]] = {}
    for life in range(deaths + 1):
        for day in range(12 * life // (deaths + 1), 12 * (life + 1) // (deaths + 1)):
            rows = [ride for ride in rides if ride["at_ms"] // DAY_MS == day]
            (folder / f".{day}").write_bytes(jsonl(rows))
            (folder / f".{day}").rename(folder / f"day-{day}.json")
        objects, systems = open_store(config.job.root), open_systems(config)
        with closing(systems["local"].admin()) as admin:
            admin.create_stream("out", 1)
        with closing(InProcessDriver(rolling().graph(), config, objects, systems, until_latest=True)) as driver:
            left = rng.randrange(5, 40) if life < deaths else -1

            def step(_: str) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise DeadError("dead")

            driver.fleet.at = driver.runner.at = step
            try:
                driver.loop.run()
            except PenstockError:
                assert life < deaths
    with closing(systems["local"].admin()) as admin, closing(systems["local"].reader()) as reader:
        end = admin.offsets("out")[0].upcoming
        for chunk in reader.read(OffsetRange(ps.SystemStreamPartition("local", "out", 0), 0, end), 100):
            for message in chunk:
                ride, total = json.loads(message[3] or b"")
                found.setdefault(ride["n"], set()).add(total)
    assert found == {n: {total} for n, total in expected.items()}, "each once, or again with the same result"
