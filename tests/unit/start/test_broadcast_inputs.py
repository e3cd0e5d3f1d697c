"""`task.broadcast.inputs`: its value, what is refused, where each task begins, and a task with reference data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.admin.startpoint.inputs import application_inputs
from penstock.api.requests import StartpointOldest, StartpointSpecific
from penstock.batch.batch import TaskSsp
from penstock.checkpoint.edit import OffsetKey, with_offsets
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.kinds import BroadcastInputs, PartitionRange, RefusedError
from penstock.config.load import load_config
from penstock.errors import ConfigError, IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.start.inputs import group_inputs
from penstock.start.job_streams import JobStreams
from penstock.start.plan import StartFacts, decide_beginning, read_requests, resolver
from penstock.start.positions import start_positions
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import task_name
from penstock.start.startpoints import JobInputs
from penstock.testing import TestRunner
from tests.support.apps.broadcast_app import seen_app
from tests.support.stores.stopped_job import PATHS, SSP, StoppedJob, call, call_json, saved, ssp

ALL = SSP("local", "all", 0)
RATES = ps.SystemStream("local", "rates")


# The value.


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("local.rates#0", (PartitionRange(RATES, 0, 0),)),
        ("local.rates#[1-3] , local.rates#7", (PartitionRange(RATES, 1, 3), PartitionRange(RATES, 7, 7))),
        (("local.rates#[ 2 - 2 ]",), (PartitionRange(RATES, 2, 2),)),
        ("local.rates#1,local.rates#1", (PartitionRange(RATES, 1, 1),)),
        ("local.a.b-c#0", (PartitionRange(ps.SystemStream("local", "a.b-c"), 0, 0),)),
    ],
)
def test_the_value(raw: str | tuple[str, ...], expected: tuple[PartitionRange, ...]) -> None:
    kind = BroadcastInputs()
    assert kind.parse(raw) == expected
    assert kind.parse(kind.text(expected)) == expected
    loaded = load_config(overrides={"job.name": "j", "task.broadcast.inputs": raw}, environ={})
    assert loaded.task.broadcast_inputs == expected
    assert load_config(overrides=loaded.flat(), environ={}) == loaded


def test_nothing_is_broadcast_by_default() -> None:
    assert load_config(overrides={"job.name": "j"}, environ={}).task.broadcast_inputs == ()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("local.rates", "`local.rates` is not a partition"),
        ("local.rates#", "is not a partition"),
        ("local.rates#x", "is not a partition"),
        ("local.rates#-1", "is not a partition"),
        ("local.rates#[0-]", "is not a partition"),
        ("local.rates#0-3", "is not a partition"),
        ("local.rates#[3-1]", "`local.rates#[3-1]` ends before it begins"),
        ("rates#0", "not of the form `system.stream`"),
        ("local.rates#0,", "an empty entry"),
        ((), "an empty list"),
        ("kafka.rates#0", "there is no system `kafka`"),
    ],
)
def test_a_wrong_value(raw: object, said: str) -> None:
    with pytest.raises(ConfigError) as failed:
        load_config(overrides={"job.name": "j", "task.broadcast.inputs": raw}, environ={})
    assert said in str(failed.value)
    assert "`task.broadcast.inputs`" in str(failed.value)


def test_a_range_as_large_as_can_be_written_is_not_counted_through() -> None:
    (found,) = BroadcastInputs().parse("local.rates#[0-999999999]")
    with pytest.raises(ConfigError, match=r"`local.rates` has 1 partition, the last one is 0"):
        group_inputs([SSP("local", "rates", 0)], [found])
    with pytest.raises(RefusedError):
        BroadcastInputs().parse("local.rates#[0-9999999999]")


# Which task reads what.


@pytest.mark.parametrize(
    ("broadcast", "said"),
    [
        (
            "local.other#0",
            ("`local.other` is not an input of the application, which reads `local.events`, `local.rates`"),
        ),
        ("local.rates#2", r"names `local.rates#2`, but `local.rates` has 2 partitions, the last one is 1"),
        ("local.rates#[1-2]", r"names `local.rates#\[1-2\]`, but"),
        ("local.rates#[0-1],local.events#[0-1]", "names every partition of every input"),
    ],
)
def test_a_job_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, broadcast: str, said: str) -> None:
    streams = two_inputs(tmp_path, **{"task.broadcast.inputs": broadcast})
    with pytest.raises(ConfigError, match=said):
        streams.group(streams.input_partitions())
    with pytest.raises(ConfigError, match=said):
        TestRunner(seen_app(), broadcast_inputs=broadcast)
    config = {"systems.local.path": str(tmp_path / "streams"), "job.root": str(tmp_path / "jobs")}
    with pytest.raises(ConfigError, match=said):
        seen_app().run({**config, "task.broadcast.inputs": broadcast}, until="latest")
    assert not (tmp_path / "jobs").exists()


def test_the_runner_names_its_own_argument() -> None:
    with pytest.raises(ConfigError, match=r"^broadcast_inputs: expected .*`local.rates` is not a partition"):
        TestRunner(seen_app(), broadcast_inputs="local.rates")


def two_inputs(home: Path, **config: object) -> JobStreams:
    """`events` and `rates`, of two partitions each."""
    config = {"job.name": "j", "systems.local.path": str(home / "streams"), **config}
    streams = JobStreams.open(seen_app().graph(), load_config(overrides=config, environ={}))
    for stream in streams.inputs:
        streams.admins["local"].create_stream(stream.stream, 2)
    return streams


def test_tasks_beyond_the_partitions_read_what_is_broadcast_as_well(tmp_path: Path) -> None:
    config: dict[str, object] = {"task.broadcast.inputs": "local.rates#1", "job.intermediate.stream.partitions": 4}
    streams = two_inputs(tmp_path, **config)

    def rates(partition: int) -> SSP:
        return SSP("local", "rates", partition)

    def events(partition: int) -> SSP:
        return SSP("local", "events", partition)

    assert streams.group(streams.ends()).tasks == {
        0: (events(0), rates(0), rates(1)),
        1: (events(1), rates(1)),
        2: (rates(1),),
        3: (rates(1),),
    }


def test_the_commands_group_as_the_job_does(tmp_path: Path) -> None:
    streams = two_inputs(tmp_path)
    config = load_config(
        overrides={
            "job.name": "j",
            "systems.local.path": str(tmp_path / "streams"),
            "task.broadcast.inputs": "local.rates#0",
        },
        environ={},
    )
    expected = group_inputs(streams.ends(), config.task.broadcast_inputs)
    inputs = application_inputs(config, seen_app())
    assert (inputs.tasks, len(inputs.tasks)) == (expected.tasks, 2)


# Where each task begins.


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoppedJob:
    """Two tasks that read a broadcast partition of 20 messages beside their own; task 0 stands at 5, task 1 at 8."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    job = StoppedJob(tmp_path / "home")
    job.system.admin().create_stream("all", 1)
    writer = job.system.writer(None)
    writer.append(ALL, [(0, None, b"v")] * 20)
    writer.close()
    job.run(broadcast_record(1))
    return job


def broadcast_record(number: int) -> CheckpointRecord:
    """As the last checkpoint has it."""
    return replace(saved(number), next_offsets={0: {ssp(0): 4, ALL: 5}, 1: {ssp(1): 7, ALL: 8}})


def planned(job: StoppedJob, broadcast: str | None = "local.all#0", **config: object) -> dict[TaskSsp, int]:
    """Where a start begins."""
    loaded = load_config(overrides={"job.name": "flights", "task.broadcast.inputs": broadcast, **config}, environ={})
    admin = job.system.admin()
    ends = {SSP("local", name, n): end for name in ("all", ssp(0).stream) for n, end in admin.offsets(name).items()}
    inputs = JobInputs(group_inputs(ends, loaded.task.broadcast_inputs).tasks, ends)
    manager = StartpointManager(job.objects, PATHS)
    view = CheckpointLog(job.objects, PATHS).read()
    requests = read_requests(manager, view, loaded)
    facts = StartFacts(ApplicationGraph("flights", (), (), ()), loaded, inputs, view, requests)
    return start_positions(decide_beginning(facts, resolver({"local": admin})), inputs, loaded)


def at(zero: int, one: int, own: tuple[int, int] = (4, 7)) -> dict[TaskSsp, int]:
    """Positions of both tasks in the broadcast partition, and in their own."""
    return {TaskSsp(0, ALL): zero, TaskSsp(1, ALL): one, TaskSsp(0, ssp(0)): own[0], TaskSsp(1, ssp(1)): own[1]}


def test_every_task_goes_on_from_its_own_position(job: StoppedJob) -> None:
    assert planned(job) == at(5, 8)


def test_a_startpoint_of_a_partition_reaches_every_task(job: StoppedJob) -> None:
    StartpointManager(job.objects, PATHS).write_startpoint(ALL, StartpointSpecific("2"))
    assert planned(job) == at(2, 2)


def test_a_startpoint_of_a_task_reaches_that_task(job: StoppedJob) -> None:
    StartpointManager(job.objects, PATHS).write_startpoint(ALL, StartpointOldest(), task_name(1))
    assert planned(job) == at(5, 0)


def test_where_no_checkpoint_is_near_the_task_that_is_furthest_is_named(job: StoppedJob) -> None:
    StartpointManager(job.objects, PATHS).write_startpoint(ALL, StartpointSpecific("6"), with_state="nearest")
    with pytest.raises(IncompatibleError, match=r"`local.all.0` at 8 \(wanted 6\)"):
        planned(job)


def test_a_reset_stream_is_reset_in_every_task(job: StoppedJob) -> None:
    assert planned(job, **{"streams.local.all.samza.reset.offset": "true"}) == at(0, 0)


def test_a_task_that_did_not_read_it_before_begins_where_a_new_input_does(job: StoppedJob) -> None:
    job.run(replace(saved(2), next_offsets={0: {ssp(0): 4, ALL: 5}, 1: {ssp(1): 7}}))
    assert planned(job) == at(5, 0)
    assert planned(job, **{"streams.local.all.samza.offset.default": "upcoming"}) == at(5, 20)


def test_what_is_broadcast_no_more_stays_with_its_own_task(job: StoppedJob) -> None:
    expected = at(5, 8)
    del expected[TaskSsp(1, ALL)]
    assert planned(job, None) == expected


# Set by hand.


def test_an_offset_goes_to_every_task_that_reads_the_partition() -> None:
    record = broadcast_record(1)
    assert with_offsets(record, {OffsetKey(ALL): 3}) == {0: {ssp(0): 4, ALL: 3}, 1: {ssp(1): 7, ALL: 3}}
    assert with_offsets(record, {OffsetKey(ALL, 1): 3}) == {0: {ssp(0): 4, ALL: 5}, 1: {ssp(1): 7, ALL: 3}}
    with pytest.raises(ConfigError, match=r"no input `local.dep.flights.1` of task 0; it has `local.all`"):
        with_offsets(record, {OffsetKey(ssp(1), 0): 3})


def test_checkpoint_set(job: StoppedJob) -> None:
    shown = json.dumps(call_json("show", "flights"))
    done = call_json("set", "flights", "--offsets", "-", "--yes", text='{"local.all": {"0": 3}}')
    assert [(c["task"], c["oldNext"], c["newNext"]) for c in done["changes"]] == [(0, 5, 3), (1, 8, 3)]
    assert planned(job) == at(3, 3)
    call("set", "flights", "--offsets", "-", "--yes", text=shown)
    assert planned(job) == at(5, 8), "what `show` prints says it task by task"


# A task with reference data.


class Priced(ps.StreamTask):
    """Keeps every rate, and sends amounts at the rate of their currency."""

    def init(self, context: ps.TaskContext) -> None:
        self.rates = context.store("rates")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if envelope.ssp.stream == "rates":
            self.rates.put(envelope.key, envelope.value)
        else:
            currency, amount = envelope.value
            collector.send("priced", key=currency, value=amount * (self.rates.get(currency) or 0))


def priced_app() -> ps.TaskApplication:
    app = ps.TaskApplication("priced", Priced)
    app.store("rates")
    app.output("m.priced")
    app.input("m.orders", key=ps.String())
    app.input("m.rates", key=ps.String())
    return app


@pytest.mark.parametrize("limit", [None, 1])
def test_every_task_keeps_the_reference_data(limit: int | None) -> None:
    runner = TestRunner(priced_app(), partitions=3, broadcast_inputs=["m.rates#[0-2]"])
    rates = {f"c{n}": n for n in range(1, 8)}
    runner.input("m.rates", list(rates.items())).run(batch_messages=limit)
    assert [runner.store("rates", task=task) for task in range(3)] == [rates] * 3
    for task in range(3):
        runner.input("m.orders", [(None, ["c5", 10]), (None, [f"c{task + 1}", 100])], partition=task)
    runner.run(batch_messages=limit)
    assert sorted(m.value for m in runner.output("m.priced")) == [50, 50, 50, 100, 200, 300]
    runner.input("m.rates", [("c5", 6)]).run(batch_messages=limit)
    assert [runner.store("rates", task=task)["c5"] for task in range(3)] == [6, 6, 6]


class Drained(Priced, ps.DrainListenerTask):
    """Sends what it has kept when it drains."""

    def on_drain(self, collector: Any, coordinator: Any) -> None:
        collector.send("priced", value=sorted(self.rates.items()))


def test_a_drain_reaches_every_task_that_reads_what_is_broadcast() -> None:
    """Each at its position: the next run reads what came behind the request, in every task."""
    app = ps.TaskApplication("priced", Drained)
    app.store("rates")
    app.output("m.priced")
    app.input("m.orders", key=ps.String())
    app.input("m.rates", key=ps.String())
    runner = TestRunner(app, partitions=3, broadcast_inputs="m.rates#[0-2]")
    runner.input("m.rates", [("c1", 1), ("c2", 2)]).run().input("m.rates", [("c3", 3)]).drain()
    assert [message.value for message in runner.output("m.priced")] == [[["c1", 1], ["c2", 2]]] * 3
    runner.restore().run()
    assert [runner.store("rates", task=task) for task in range(3)] == [{"c1": 1, "c2": 2, "c3": 3}] * 3


def test_partitions_that_are_not_named_stay_with_their_task() -> None:
    runner = TestRunner(seen_app(), broadcast_inputs="local.rates#0")
    runner.input("local.rates", ["a", "b"], partition=0).input("local.rates", ["c"], partition=1).run()
    assert runner.store("seen", task=0) == {"rates-0-0": 1, "rates-0-1": 1}
    assert runner.store("seen", task=1) == {"rates-0-0": 1, "rates-0-1": 1, "rates-1-0": 1}


def test_behind_a_partition_by_a_message_arrives_once_for_each_task() -> None:
    app = ps.StreamApplication("job")
    out = app.output("m.out")
    both = app.input("m.in").merge(app.input("m.all"))
    both.partition_by(lambda value: value, key=ps.String()).send_to(out)
    runner = TestRunner(app, partitions=3, broadcast_inputs="m.all#0").input("m.all", ["x"], partition=0)
    runner.input("m.in", ["y"]).run()
    assert sorted(m.value for m in runner.output("m.out")) == ["x", "x", "x", "y"]


def test_a_failure_names_the_broadcast_message() -> None:
    runner = TestRunner(priced_app(), broadcast_inputs="m.rates#1")
    ssp_of = ps.SystemStreamPartition("m", "rates", 1)
    runner._home.streams.systems["m"].writer(None).append(ssp_of, [(0, b"c", b"{not json")])
    with pytest.raises(ps.UserCodeError) as failed:
        runner.run()
    assert (failed.value.failed.stream, failed.value.failed.partition, failed.value.failed.offset) == ("m.rates", 1, 0)
