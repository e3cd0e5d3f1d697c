"""The first and the last stage of a job: they run outside its containers, and keep readers and writers open."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.graph.topology import Topology
from penstock.runtime.messages.packet import Packet
from penstock.runtime.messages.spool import Spool
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.instance import StageInstance
from penstock.runtime.stage.sink import OutputWriters, SinkAttempts
from penstock.runtime.stage.source import InputReaders, ReadProgress, run_sources
from penstock.system.base import System, WriterIdentity


class OuterStages:
    """Both stages of one job in one process. It keeps readers, writers and instances from batch to batch, of one epoch
    at a time: those of another epoch are closed. Used by one thread."""

    def __init__(self, topology: Topology, settings: RuntimeSettings, systems: Mapping[str, System]) -> None:
        self._topology = topology
        self._settings = settings
        self._systems = systems
        self._readers: tuple[Hashable, InputReaders] | None = None
        """The epoch and its readers."""
        self._instances: dict[int, StageInstance] = {}
        """Task → its instance of stage 0."""
        self._writers: tuple[WriterIdentity, OutputWriters] | None = None

    def read(
        self,
        epoch: Hashable,
        batch: Batch,
        portions: Mapping[int, Sequence[tuple[int, Portion]]],
        progress: ReadProgress,
    ) -> Iterator[Packet]:
        """All output of stage 0 for the portions of each task; see `run_sources`."""
        if self._readers is None or self._readers[0] != epoch:
            self._close_readers()
            self._readers = epoch, InputReaders(self._systems)
        readers = self._readers[1]
        return run_sources(self._topology, self._settings, batch, portions, readers, progress, self._instances)

    def sinks(self, batch: Batch, tasks: Iterable[int]) -> SinkAttempts:
        """New attempts of the last stage."""
        return SinkAttempts(self._topology, self._settings, batch, tasks, Spool())

    def writers(self, identity: WriterIdentity) -> OutputWriters:
        if self._writers is None or self._writers[0] != identity:
            self._close_writers()
            self._writers = identity, OutputWriters(self._systems, identity)
        return self._writers[1]

    def leave_writers(self) -> None:
        """Forget the writers without closing them. The next ones are new."""
        self._writers = None

    def close(self) -> None:
        self._close_readers()
        self._close_writers()

    def _close_readers(self) -> None:
        """Close the readers, and the instances, which are of the same epoch."""
        readers, self._readers = self._readers, None
        instances, self._instances = self._instances, {}
        if readers is not None:
            readers[1].close()
        for instance in instances.values():
            instance.close()

    def _close_writers(self) -> None:
        writers, self._writers = self._writers, None
        if writers is not None:
            writers[1].close()
