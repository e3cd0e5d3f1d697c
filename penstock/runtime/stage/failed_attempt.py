"""The output of an attempt that cannot run at all: failed trailers to everyone it sends to, and a report.

A failed Spark task would be tried again and end in a Java stack trace; a mistake of the application or a message
that no longer exists would fail the same way each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import FailedMessage
from penstock.graph.topology import Topology
from penstock.runtime.context import MessagePage, OperatorFailedError, Position, SspTable
from penstock.runtime.messages.packet import Packet
from penstock.runtime.messages.router import JointOutput, Router, finish_output
from penstock.runtime.reports import Report, engine_error
from penstock.runtime.settings import RuntimeSettings
from penstock.state.engines.engine import EngineFailedError


def failed_attempt(
    topology: Topology,
    settings: RuntimeSettings,
    stage: int,
    task: int,
    token: str,
    error: BaseException,
    together: JointOutput | None = None,
) -> Iterator[Packet]:
    """The packets of an attempt that failed outside of any message. `together`: see `Attempt.finish`."""
    router = Router(
        topology,
        stage,
        task,
        settings.tasks,
        Position(MessagePage(SspTable(()), (), (), ())),
        settings.output_partitions,
    )
    router.begin(token)
    yield from finish_output(router, together, failed=True)
    yield failure_report(stage, task, token, {}, error).packet()


def failure_report(stage: int, task: int, token: str, read: Mapping[int, int], error: BaseException) -> Report:
    if isinstance(error, OperatorFailedError):
        # Without a message: the operator's constructor or `init` failed.
        failed: FailedMessage | None = error.describe(SystemStreamPartition("none", "none", task), -1, None)
        return Report(stage, task, token, read, failed=failed)
    if isinstance(error, EngineFailedError):
        return Report(stage, task, token, read, error=engine_error(error, task))
    return Report(stage, task, token, read, error=(type(error).__name__, str(error)))
