"""The exchange of attempts with their caller: packets come in and go out at the same time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.container.epoch.attempts import Attempts, RunningAttempt
from penstock.container.epoch.container import Container, Epoch
from penstock.errors import PenstockError
from penstock.runtime.context import OperatorFailedError
from penstock.runtime.messages.packet import (
    NO_PACKETS,
    PACKET_SCHEMA,
    Packet,
    PacketKind,
    from_batch,
    split_by_size,
    to_batch,
)
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.stage.attempt import new_token
from penstock.runtime.stage.failures import failed_attempt
from penstock.state.engines.engine import EngineFailedError
from penstock.wire.protocol import END_OF_INPUT, AttemptCall, StartRun, carried, load, status_text

logger = logging.getLogger(__name__)


def run_attempts(container: Container, command: bytes, reader: Any, writer: Any) -> None:
    """Run attempts of some tasks. `reader` and `writer` are those of a Flight exchange, or what has their methods.

    Raises:
        FlightServerError: they failed, and the caller cannot be told.
    """
    writer.begin(PACKET_SCHEMA)
    running: dict[int, RunningAttempt] = {}
    last = NO_PACKETS
    attempts: Attempts | None = None
    try:
        call = load(AttemptCall, command)
        epoch = container.epoch(call.identity)
        attempts = epoch.attempts
        if call.starts:
            epoch.start_run(StartRun(call.batch))
        together = JointOutput(len(call.tasks))
        failed = _begin(epoch, call, running, together)
        for chunk in reader:
            if _is_end(chunk):
                last = chunk.data  # without it the worker has ended, and trailers are missing
                break
            _send(writer, _outputs(chunk.data, attempts, running))
        # One stream for all: for a small batch this is one message, reports and all, however many the tasks.
        _send(writer, chain(_outputs(last, attempts, running), _rest(attempts, running, together, failed)))
    except BaseException as error:
        if not isinstance(error, PenstockError):
            logger.exception("attempts failed")
        _abandon(attempts, running)
        if not _tell(error, reader, writer):
            raise flight.FlightServerError(status_text(error)) from error
    finally:
        _abandon(attempts, running)


def _abandon(attempts: Attempts | None, running: dict[int, RunningAttempt]) -> None:
    while attempts is not None and running:
        attempts.abandon(running.popitem()[1])


def _tell(error: BaseException, reader: Any, writer: Any) -> bool:
    """Send the error as the last message, and take the rest of the input: a caller whose write fails would learn only
    the status of the call. Returns False if the caller has gone."""
    try:
        writer.write_with_metadata(NO_PACKETS, carried(error, kind=not isinstance(error, PenstockError)))
        for chunk in reader:
            if _is_end(chunk):
                break
    except (pa.ArrowException, flight.FlightError, OSError, StopIteration):
        return False
    return True


def _is_end(chunk: Any) -> bool:
    return chunk.app_metadata is not None and chunk.app_metadata.to_pybytes() == END_OF_INPUT


def _begin(epoch: Epoch, call: AttemptCall, running: dict[int, RunningAttempt], together: JointOutput) -> list[Packet]:
    """Begin an attempt for each task. Returns the reports of attempts whose `init` or store failed: they run no
    further."""
    failed: list[Packet] = []
    token = new_token()
    for task in call.tasks:
        try:
            running[task] = epoch.attempts.begin(call, task, token)
        except (OperatorFailedError, EngineFailedError) as error:
            package = epoch.package
            failed.extend(failed_attempt(package.topology, package.settings, call.stage, task, token, error, together))
    return failed


def _outputs(batch: pa.RecordBatch, attempts: Attempts, running: Mapping[int, RunningAttempt]) -> Iterator[Packet]:
    """Feed packets to their attempts, and send the output of each before it grows too large: one by one those with
    messages, together the trailers that follow."""
    waiting: dict[int, list[Packet]] = {}
    for packet in from_batch(batch):
        if packet.dest in running:
            own = waiting.setdefault(packet.dest, [])
            own.append(packet)
            if packet.kind == PacketKind.DATA:
                yield from attempts.process(running[packet.dest], own)
                own.clear()
    for task, own in waiting.items():
        if own:
            yield from attempts.process(running[task], own)


def _rest(
    attempts: Attempts, running: dict[int, RunningAttempt], together: JointOutput, failed: Iterable[Packet]
) -> Iterator[Packet]:
    """Finish every attempt and yield its remaining packets, then the trailers of all attempts, and then their reports.
    The reports of attempts that failed earlier come first. A reader that has the reports has everything.

    An attempt that is finished and whose report is not sent, because another one failed, is named by no End: it is
    dropped with the run.
    """
    reports = list(failed)
    for task in list(running):
        *rest, report = attempts.finish(running[task], together)
        yield from rest
        reports.append(report)
        del running[task]
    yield from together.end()
    yield from reports


def _send(writer: Any, packets: Iterable[Packet]) -> None:
    for group in split_by_size(packets):
        writer.write_batch(to_batch(group))
