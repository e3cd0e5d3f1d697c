"""Stage 0: reads the ranges of one task and runs the operators before the first exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.errors import PenstockError, RetryableError
from penstock.runtime.attempt import Attempt, new_token
from penstock.runtime.batch import Batch
from penstock.runtime.context import OperatorFailedError, Position
from penstock.runtime.failure import failed_attempt
from penstock.runtime.instance import RuntimeSettings, StageInstance
from penstock.runtime.packet import Packet
from penstock.runtime.topology import Topology
from penstock.system.base import OffsetRange, System, SystemReader

READ_MESSAGES = 4096
"""Messages read at once."""


class SourceProgress:
    """How far stage 0 is, for another thread to look at."""

    def __init__(self) -> None:
        self.position: Position | None = None
        """The position of the task that runs now."""

    def __call__(self) -> object:
        """A value that changes whenever another message has been processed."""
        position = self.position
        return None if position is None else (id(position), position.progress())


def run_source(
    topology: Topology,
    settings: RuntimeSettings,
    batch: Batch,
    task: int,
    ranges: Sequence[tuple[int, OffsetRange]],
    systems: Mapping[str, System],
    progress: SourceProgress | None = None,
) -> Iterator[Packet]:
    """Everything the task's ranges (input index, range) come to: data packets, trailers, the report."""
    token = new_token()
    readers: dict[str, SystemReader] = {}
    instance: StageInstance | None = None
    try:
        instance = StageInstance(topology, 0, task, settings, {})
        if progress is not None:
            progress.position = instance.position
        attempt = Attempt(instance, token, settings.tasks, batch)
        for index, offsets in ranges:
            reader = readers.get(offsets.ssp.system)
            if reader is None:
                reader = readers[offsets.ssp.system] = systems[offsets.ssp.system].reader()
            for messages in reader.read(offsets, READ_MESSAGES):
                yield from attempt.accept_input(index, offsets.ssp.partition, messages)
        yield from attempt.finish()
    except RetryableError:
        raise
    except (PenstockError, OperatorFailedError) as error:
        yield from failed_attempt(topology, settings, 0, task, token, error)
    finally:
        for reader in readers.values():
            reader.close()
        if instance is not None:
            instance.close()
