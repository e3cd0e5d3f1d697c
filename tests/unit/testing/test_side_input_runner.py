"""Jobs with side inputs, whole, in the test's process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.testing import TestRunner

TRIPS = "local.trips"
PLANES = "local.planes"


@pytest.fixture
def made() -> Iterator[list[TestRunner]]:
    runners: list[TestRunner] = []
    yield runners
    for runner in runners:
        runner.close()


def joined(**planes: Any) -> ps.StreamApplication:
    """Each trip with its plane, behind an exchange."""
    app = ps.StreamApplication("joined")
    given: dict[str, Any] = {"side_inputs": [PLANES], **planes}
    table = app.table("planes", **given)
    by_tail = app.input(TRIPS).partition_by(lambda trip: trip["tail"])
    full = by_tail.join_table(table, lambda trip, plane: [trip["n"], plane], kind="left")
    full.send_to(app.output("local.full"))
    return app


def runner_of(made: list[TestRunner], app: Any, **options: Any) -> TestRunner:
    made.append(TestRunner(app, partitions=3, **options))
    return made[-1]


def trips(first: int, *tails: str) -> list[dict[str, Any]]:
    return [{"n": first + n, "tail": tail} for n, tail in enumerate(tails)]


def came(runner: TestRunner, stream: str = "local.full") -> list[Any]:
    return sorted((message.value for message in runner.output(stream)), key=str)


def test_a_join_behind_an_exchange(made: list[TestRunner]) -> None:
    tails = [f"N{n}" for n in range(30)]
    runner = runner_of(made, joined()).side_input(PLANES, [(tail, {"seats": len(tail)}) for tail in tails])
    runner.input(TRIPS, trips(0, *tails, "N99")).run(batch_messages=5)
    assert came(runner) == sorted([[n, {"seats": len(t)}] for n, t in enumerate(tails)] + [[30, None]], key=str)
    assert runner.store("planes") == {tail: {"seats": len(tail)} for tail in tails}


def test_updates_between_runs(made: list[TestRunner]) -> None:
    runner = runner_of(made, joined()).side_input(PLANES, [("A", 1), ("B", 2)]).input(TRIPS, trips(0, "A", "B")).run()
    runner.side_input(PLANES, [("A", 3), ("B", None), ("C", 4)]).input(TRIPS, trips(2, "A", "B", "C")).run()
    assert came(runner) == [[0, 1], [1, 2], [2, 3], [3, None], [4, 4]]
    assert runner.store("planes") == {"A": 3, "C": 4}


def test_several_streams_fill_a_store_and_a_stream_several_stores(made: list[TestRunner]) -> None:
    app = ps.StreamApplication("many")
    both = app.table("both", side_inputs=[PLANES, ps.SideInput("local.notes", value=ps.String())])
    app.store("one", side_inputs=[PLANES])
    app.input(TRIPS).join_table(both, lambda trip, note: note).process(Read, stores=["one"])
    runner = runner_of(made, app).side_input(PLANES, [("A", 1), ("B", 2)]).run()
    runner.side_input("local.notes", [("B", "two")]).run()
    assert (runner.store("both"), runner.store("one")) == ({"A": 1, "B": "two"}, {"A": 1, "B": 2})


class Read(ps.StreamTask):
    """Emits what the store `one` has: for the message's key, for some keys, in a range, and altogether."""

    def init(self, context: ps.TaskContext) -> None:
        self.one: ps.KeyValueStore[str, Any] = context.store("one")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: Any, coordinator: Any) -> None:
        key = envelope.key
        found = [self.one.get(key), self.one.get_all([key, "x"]), dict(self.one.range(key, "C"))]
        collector.send("local.read", key=key, value=[*found, dict(self.one.all())])


def reading(**one: Any) -> ps.TaskApplication:
    app = ps.TaskApplication("read", Read)
    app.input(TRIPS, value=ps.Json())
    app.store("one", side_inputs=[PLANES], **one)
    app.output("local.read")
    return app


def test_a_low_level_task_reads_a_side_store(made: list[TestRunner]) -> None:
    runner = runner_of(made, reading()).side_input(PLANES, [("D", 4), ("B", 2), ("A", 1)], partition=1)
    runner.input(TRIPS, [("A", 0)], partition=1).input(TRIPS, [("A", 0)], partition=0).run()
    assert came(runner, "local.read") == [
        [1, {"A": 1, "x": None}, {"A": 1, "B": 2}, {"A": 1, "B": 2, "D": 4}],
        [None, {"A": None, "x": None}, {}, {}],  # task 0 has nothing of partition 1
    ]


def test_every_task_has_a_broadcast_store(made: list[TestRunner]) -> None:
    runner = runner_of(made, reading(broadcast=True)).side_input(PLANES, [("A", 1), ("x", 2)])
    for partition in range(3):
        runner.input(TRIPS, [("A", 0)], partition=partition)
    runner.run()
    assert [message.value for message in runner.output("local.read")] == [
        [1, {"A": 1, "x": 2}, {"A": 1}, {"A": 1, "x": 2}]
    ] * 3


class Total(ps.SideInputsProcessorFactory):
    """Adds up."""

    def get_side_inputs_processor(self, config: Any, metrics_registry: Any) -> Any:
        def process(message: ps.IncomingMessageEnvelope, store: Any) -> Iterable[Any]:
            if message.value == "ignored":
                return [(None, 1)]
            return [ps.Entry(message.key, (store.get(message.key) or 0) + message.value)]

        return process


def test_a_processor_sees_what_it_returned_before(made: list[TestRunner]) -> None:
    runner = runner_of(made, joined(processor=Total()))
    runner.side_input(PLANES, [("A", 1), ("A", 2), ("B", "ignored")]).run()
    runner.side_input(PLANES, [("A", 4)]).run()
    assert runner.store("planes") == {"A": 7}


def test_the_configuration_names_streams_and_processor(made: list[TestRunner]) -> None:
    app = ps.TaskApplication("read", Read)
    app.input(TRIPS)
    app.store("one")
    app.output("local.read")
    keys = {"stores.one.side.inputs": PLANES, "stores.one.side.inputs.processor.factory": f"{__name__}:Total"}
    runner = runner_of(made, app, config=keys).side_input(PLANES, [("A", 1), ("A", 2)]).run()
    assert runner.store("one") == {"A": 3}


class Write(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.one: ps.KeyValueStore[str, Any] = context.store("one")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: Any, coordinator: Any) -> None:
        if envelope.value == "delete":
            self.one.delete(envelope.key)
        else:
            self.one.put(envelope.key, envelope.value)


@pytest.mark.parametrize("value", ["delete", 5])
def test_a_task_does_not_write_a_side_store(made: list[TestRunner], value: Any) -> None:
    app = ps.TaskApplication("write", Write)
    app.input(TRIPS)
    app.store("one", side_inputs=[PLANES])
    runner = runner_of(made, app).input(TRIPS, [("A", value)])
    said = "store `one` is filled by its side inputs `local.planes` and is read-only"
    with pytest.raises(ps.UserCodeError, match=re.escape(said)):
        runner.run()


def test_a_stream_that_is_an_input_as_well(made: list[TestRunner]) -> None:
    app = ps.TaskApplication("read", Read)
    app.input(PLANES)
    app.store("one", side_inputs=[PLANES])
    app.output("local.read")
    runner = runner_of(made, app).side_input(PLANES, [("A", 1)]).run()
    runner.input(PLANES, [("A", 2)]).run()
    assert [message.value[0] for message in runner.output("local.read")] == [1, 2], "read before it is processed"


def test_a_side_store_is_no_part_of_checkpoints(made: list[TestRunner]) -> None:
    app = joined()
    app.store("own")
    app.input("local.more").process(Count, stores=["own"])
    runner = runner_of(made, app).side_input(PLANES, [("A", 1)]).input("local.more", [("k", 0)] * 2).run().commit()
    runner.side_input(PLANES, [("A", 2), ("B", 2)]).input("local.more", [("k", 0)]).run()
    runner.crash().restore()
    assert (runner.store("own"), runner.store("planes")) == ({"k": 2}, {"A": 2, "B": 2})


def test_a_job_that_writes_no_store_commits(made: list[TestRunner]) -> None:
    runner = runner_of(made, joined()).side_input(PLANES, [("A", 1)]).input(TRIPS, trips(0, "A")).run().commit()
    runner.crash().restore().input(TRIPS, trips(1, "A")).run().commit()
    assert came(runner) == [[0, 1], [1, 1]], "the first trip was read once"


class Count(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.own: ps.KeyValueStore[str, int] = context.store("own")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: Any, coordinator: Any) -> None:
        self.own[envelope.key] = self.own.get(envelope.key, 0) + 1


def test_side_inputs_hold_no_watermark_back_and_do_not_keep_a_job_from_ending(made: list[TestRunner]) -> None:
    app = ps.StreamApplication("windows")
    planes = app.table("planes", side_inputs=[PLANES])
    counts = app.input(TRIPS).window(ps.Windows.tumbling(1000, aggregates={"n": ps.Count()}), id="w")
    panes = counts.map(lambda pane: pane.message["n"]).join_table(planes, lambda n, plane: [n, plane], kind="left")
    panes.send_to(app.output("local.panes"))
    runner = runner_of(made, app).side_input(PLANES, [("A", 1)], timestamp=0)
    runner.input(TRIPS, [("A", 0)] * 2, timestamp=500).run().advance_watermark(1000)
    assert came(runner, "local.panes") == [[2, 1]]
    runner.input(TRIPS, [("A", 0)], timestamp=1500).run().side_input(PLANES, [("A", 2)]).drain()
    assert came(runner, "local.panes") == [[1, 2], [2, 1]]
    runner.restore().input(TRIPS, [("A", 0)], timestamp=2500).end_inputs()
    assert came(runner, "local.panes") == [[1, 2], [1, 2], [2, 1]]


def test_a_store_that_the_job_wrote_and_side_inputs_fill_then_and_back(made: list[TestRunner]) -> None:
    def written() -> ps.StreamApplication:
        app = ps.StreamApplication("joined")
        app.input(PLANES).send_to(app.table("planes"))
        trips_of(app)
        return app

    def filled() -> ps.StreamApplication:
        app = ps.StreamApplication("joined")
        planes = app.table("planes", side_inputs=["local.more"])
        app.input(PLANES).join_table(planes, lambda value, plane: plane)
        trips_of(app)
        return app

    runner = runner_of(made, written()).input(PLANES, [("A", 1)]).input("local.more-trips", [("k", 0)]).run()
    assert (runner.store("planes"), runner.store("own")) == ({"A": 1}, {"k": 1})
    runner.commit().crash().restore(filled()).side_input("local.more", [("B", 2)])
    runner.input("local.more-trips", [("k", 0)]).run()
    assert (runner.store("planes"), runner.store("own")) == ({"B": 2}, {"k": 2})
    runner.crash().restore().run()  # its first checkpoint has no content of `planes` either
    assert (runner.store("planes"), runner.store("own")) == ({"B": 2}, {"k": 2})
    runner.commit().crash().restore(written()).run()
    assert (runner.store("planes"), runner.store("own")) == ({}, {"k": 2}), "a store that is new begins empty"


def trips_of(app: ps.StreamApplication) -> None:
    app.store("own")
    app.input("local.more-trips").process(Count, stores=["own"], id="count")


def test_what_is_no_side_input(made: list[TestRunner]) -> None:
    runner = runner_of(made, joined())
    with pytest.raises(ps.ConfigError, match=r"`local\.trips` is not a side input of a store of application `joined`"):
        runner.side_input(TRIPS, [1])
    with pytest.raises(ps.ConfigError, match=r"`local\.planes` is not an input of application `joined`"):
        runner.input(PLANES, [1])


def test_a_processor_that_raises(made: list[TestRunner]) -> None:
    def broken(message: ps.IncomingMessageEnvelope, store: Any) -> Any:
        raise ValueError(f"no plane {message.key}")

    runner = runner_of(made, joined(processor=broken)).side_input(PLANES, [("A", 1)])
    with pytest.raises(ps.UserCodeError, match="no plane A"):
        runner.run()
