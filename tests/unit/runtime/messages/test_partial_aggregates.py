"""Messages for an aggregate are added up before an exchange where few keys have many of them, and nowhere else; the
results are those of messages that travel one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest

import penstock as ps
from penstock.config import load_config
from penstock.objects.open import open_job_root
from penstock.runtime.messages import partial
from penstock.runtime.messages.packet import PacketKind
from penstock.runtime.messages.partial import expected_states
from penstock.runtime.stage.attempt import PacketAttempt
from penstock.runtime.windows.columns import WindowAdder
from penstock.system.memory import MemorySystem
from penstock.testing import TestRunner
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.partial_aggregates import added_up

ROWS = ps.Columns(pa.schema({"k": pa.string(), "x": pa.int64()}))
PARTITIONS = 3


def sums() -> ps.StreamApplication:
    app = ps.StreamApplication("sums")
    by_key = app.input("local.rows", value=ROWS).partition_by(ps.col("k"))
    aggregates = {"n": ps.Count(), "sum": ps.Sum(ps.col("x") * 2), "last": ps.Last(ps.col("x"))}
    by_key.aggregate(aggregates, id="sums").send_to(app.output("local.out"))
    return app


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the messages that come to tasks, and the states that come in their place."""
    found = Counter[str]()
    accept = PacketAttempt.accept

    def counting(self: PacketAttempt, packet: Any) -> Any:
        found[PacketKind(packet.kind).name] += packet.messages
        return accept(self, packet)

    monkeypatch.setattr(PacketAttempt, "accept", counting)
    return found


def run(batches: Sequence[Sequence[dict[str, Any]]]) -> tuple[dict[Any, Any], int]:
    """The last result of each key, and how many messages became dead letters."""
    with closing(TestRunner(sums(), partitions=PARTITIONS, dead_letter="local.dead")) as runner:
        for rows in batches:
            for partition in range(PARTITIONS):
                runner.input("local.rows", list(rows[partition::PARTITIONS]), partition=partition, timestamp=1_000)
            runner.run(batch_messages=10**6).commit().crash().restore()
        return {each.key: each.value for each in runner.output("local.out")}, runner.dead_letters


def plain(batches: Sequence[Sequence[dict[str, Any]]]) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for row in (row for rows in batches for row in rows if row["k"] is not None and row["x"] < 2**62):
        n, total = found.get(row["k"], (0, 0))
        found[row["k"]] = n + 1, total + 2 * row["x"]
    return found


def rows_of(rng: random.Random, count: int, keys: int) -> list[dict[str, Any]]:
    return [{"k": f"key-{rng.randrange(keys)}", "x": rng.randrange(1, 50)} for _ in range(count)]


def test_few_keys_travel_as_sums(states: Counter[str]) -> None:
    rng = random.Random(1)
    batches = [rows_of(rng, 15_000, 40) for _ in range(2)]
    found, dead = run(batches)
    assert {key: (each["n"], each["sum"]) for key, each in found.items()} == plain(batches)
    assert (states["DATA"], dead) == (0, 0)
    assert states["PARTIAL"] == 2 * PARTITIONS * 40


@pytest.mark.parametrize("enabled", [True, False])
def test_the_configuration_decides(enabled: bool, states: Counter[str]) -> None:
    system = MemorySystem("local")
    rows = rows_of(random.Random(5), 10_000, 40)
    for stream in ("rows", "out"):
        system.admin().create_stream(stream, 1)
    with closing(system.writer(None)) as writer:
        at = ps.SystemStreamPartition("local", "rows", 0)
        writer.append(at, [(1_000, None, orjson.dumps(row)) for row in rows])
    keys = {"job.name": "sums", "job.root": f"memory://sums-{enabled}", "job.batch.target.ms": 0} | {
        "job.partial.aggregates.enabled": enabled
    }
    config = load_config(overrides=keys)
    driver = InProcessDriver(sums().graph(), config, open_job_root(config.job), {"local": system}, until_latest=True)
    with closing(driver):
        driver.loop.run()
    assert (states["DATA"], states["PARTIAL"]) == ((0, 40) if enabled else (10_000, 0))


@pytest.mark.parametrize(("count", "keys"), [(15_000, 10**9), (3_000, 2)], ids=["a key each", "few messages"])
def test_others_travel_one_by_one(count: int, keys: int, states: Counter[str]) -> None:
    batches = [rows_of(random.Random(2), count, keys)]
    found, _ = run(batches)
    assert {key: (each["n"], each["sum"]) for key, each in found.items()} == plain(batches)
    assert (states["DATA"], states["PARTIAL"]) == (count, 0)


@pytest.mark.parametrize("wrong", [{"k": None, "x": 1}, {"k": "key-1", "x": 2**62}], ids=["no key", "fails"])
def test_what_cannot_be_added_up_fails_where_it_is_processed(wrong: dict[str, Any], states: Counter[str]) -> None:
    rows = rows_of(random.Random(3), 15_000, 40)
    rows[7_000] = wrong
    found, dead = run([rows])
    assert {key: (each["n"], each["sum"]) for key, each in found.items()} == plain([rows])
    assert dead == 1
    assert states["DATA"] >= 5_000 > states["PARTIAL"] > 0, "only the messages of its partition come one by one"


def test_an_attempt_with_more_messages_than_it_may_hold_sends_their_sums_in_turn(
    states: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "_MOST_MESSAGES", 8_000)
    monkeypatch.setattr("penstock.runtime.messages.outlet.FLUSH_ROWS", 2_000)
    batches = [rows_of(random.Random(4), 60_000, 500)]
    found, _ = run(batches)
    assert {key: (each["n"], each["sum"]) for key, each in found.items()} == plain(batches)
    assert states["PARTIAL"] == PARTITIONS * 3 * 500
    assert states["DATA"] == 0


def hopping(rows: Sequence[dict[str, Any]], every: str, aggregates: dict[str, Any]) -> dict[Any, Any]:
    """The panes by key and start."""
    app = ps.StreamApplication("hops")
    kinds = ps.Columns(pa.schema({"k": pa.string(), "x": pa.string()}))
    by_key = app.input("local.rows", value=kinds).partition_by(ps.col("k"))
    panes = by_key.window(ps.Windows.hopping("1h", every_ms=every, aggregates=aggregates), rows=True)
    panes.with_key("key").send_to(app.output("local.out"))
    with closing(TestRunner(app, partitions=1)) as runner:
        runner.input("local.rows", rows, timestamp=1_000).run(batch_messages=10**6)
        runner.drain()
        return {(each.value["key"], each.value["start_ms"]): each.value for each in runner.output("local.out")}


@pytest.mark.parametrize(("keys", "added"), [(3, True), (12_000, False)])
def test_the_windows_that_a_message_is_in_count(keys: int, added: bool, states: Counter[str]) -> None:
    """Sixty states for a message would be more than the messages."""
    rng = random.Random(keys)
    rows = [{"k": f"key-{rng.randrange(keys)}", "x": "x"} for _ in range(8_000)]
    found = hopping(rows, "5min" if not added else "1min", {"n": ps.Count()})
    expected = Counter(row["k"] for row in rows)
    assert {key: each["n"] for (key, _), each in found.items()} == expected
    assert (states["DATA"] == 0, states["PARTIAL"] > 0) == (added, added)


def test_messages_in_many_windows_are_added_up_in_pieces(states: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "_MOST_BYTES", 1 << 20)
    seen = list[int]()
    add_up = WindowAdder.add_up

    def noting(self: Any, rows: Any, batch: Any) -> Any:
        seen.append(rows.nbytes * self.times)
        return add_up(self, rows, batch)

    monkeypatch.setattr(WindowAdder, "add_up", noting)
    with added_up():
        found = hopping([{"k": "a", "x": "y" * 200}] * 2_000, "1min", {"first": ps.First(ps.col("x"))})
    assert len(found) == 60
    assert len(seen) > 10
    assert max(seen) < 3 << 20


def test_partial_sums_that_do_not_fit_travel_one_by_one(states: Counter[str]) -> None:
    app = ps.StreamApplication("wide")
    kinds = ps.Columns(pa.schema({"k": pa.string(), "x": pa.decimal256(76, 0)}))
    by_key = app.input("local.rows", value=kinds).partition_by(ps.col("k"))
    by_key.aggregate({"sum": ps.Sum(ps.col("x"))}).send_to(app.output("local.out"))
    with added_up(), closing(TestRunner(app, partitions=2)) as runner:
        for partition, sign in enumerate((3, -3)):
            runner.input("local.rows", [{"k": "a", "x": Decimal(sign * 10**60)}], partition=partition)
        runner.run(batch_messages=10)
        assert [str(each.value["sum"]) for each in runner.output("local.out")] == ["0"]
    assert states["PARTIAL"] == 0


@pytest.mark.parametrize("keys", [1, 10, 1_000, 20_000, 10**6])
def test_the_number_of_keys_is_estimated(keys: int) -> None:
    rng = random.Random(keys)
    drawn = [rng.randrange(keys) for _ in range(100_000)]
    sample = drawn[:: len(drawn) // 8_000][:8_000]
    real = len(set(drawn))
    assert expected_states(100_000, len(set(sample)), len(sample)) == pytest.approx(real, rel=0.2)
