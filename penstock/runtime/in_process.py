"""A whole batch in one process and one thread, without Spark: what the TestRunner does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from penstock.runtime.attempt import new_token
from penstock.runtime.batch import Batch
from penstock.runtime.context import OperatorFailedError
from penstock.runtime.failure import failed_attempt
from penstock.runtime.instance import RuntimeSettings
from penstock.runtime.packet import REPORT_STAGE, Packet
from penstock.runtime.reports import Report
from penstock.runtime.sink import OutputWriters, SinkAttempt, write_outputs
from penstock.runtime.source import InputReaders, run_source
from penstock.runtime.spool import Spool
from penstock.runtime.task_instance import TaskInstance
from penstock.runtime.topology import Topology
from penstock.state.engines.engine import EngineFailedError
from penstock.system.base import OffsetRange, System, WriterIdentity


def run_batch_in_process(
    topology: Topology,
    settings: RuntimeSettings,
    batch: Batch,
    tasks: Sequence[TaskInstance],
    ranges: Mapping[int, Sequence[tuple[int, OffsetRange]]],
    systems: Mapping[str, System],
    identity: WriterIdentity,
) -> list[Report]:
    """Run all stages of a batch, one after the other; `ranges` are the (input index, range) of each task."""
    waiting: list[Packet] = []
    with closing(InputReaders(systems)) as readers:
        for task in range(settings.tasks):
            waiting.extend(run_source(topology, settings, batch, task, ranges.get(task, ()), readers))
    for stage in topology.container_stages:
        for instance in tasks:
            mine, waiting = _take(waiting, stage.number, instance.task)
            waiting.extend(_run_attempt(topology, settings, batch, instance, stage.number, mine))
    if topology.sink is not None:
        for task in range(settings.tasks):
            mine, waiting = _take(waiting, topology.sink, task)
            with closing(Spool()) as spool, closing(OutputWriters(systems, identity)) as writers:
                sink = SinkAttempt(topology, settings, task, spool)
                for packet in mine:
                    sink.accept(packet)
                waiting.extend(write_outputs([sink], writers))
    return [Report.from_payload(bytes(p.payload or b"")) for p in waiting if p.stage == REPORT_STAGE]


def _take(packets: list[Packet], stage: int, task: int) -> tuple[list[Packet], list[Packet]]:
    mine = [p for p in packets if p.stage == stage and p.dest == task]
    return mine, [p for p in packets if not (p.stage == stage and p.dest == task)]


def _run_attempt(
    topology: Topology,
    settings: RuntimeSettings,
    batch: Batch,
    task: TaskInstance,
    stage: int,
    packets: list[Packet],
) -> list[Packet]:
    token = new_token()
    try:
        attempt = task.start_attempt(stage, token, batch)
    except (OperatorFailedError, EngineFailedError) as error:
        return list(failed_attempt(topology, settings, stage, task.task, token, error))
    sent: list[Packet] = []
    for packet in packets:
        sent.extend(attempt.accept(packet))
    sent.extend(attempt.finish())
    task.finish_attempt(attempt)
    return sent
