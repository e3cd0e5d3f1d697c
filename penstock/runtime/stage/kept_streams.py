"""The readers, writers and instances of stage 0 of one process, kept from batch to batch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from penstock.runtime.stage.instance import StageInstance
from penstock.runtime.stage.sink import OutputWriters
from penstock.runtime.stage.source import InputReaders
from penstock.system.base import System, WriterIdentity


class KeptStreams:
    """The readers, writers and instances of stage 0 of one process, of one job and epoch at a time: those of another
    are closed. Used by one thread."""

    def __init__(self) -> None:
        self._readers: dict[Hashable, InputReaders] = {}
        self.instances: dict[int, StageInstance] = {}
        """Task → its instance of stage 0."""
        self._writers: dict[Hashable, OutputWriters] = {}

    def readers(self, epoch: Hashable, systems: Mapping[str, System]) -> InputReaders:
        """`epoch` names the job and its epoch."""
        if epoch not in self._readers:
            for older in self._readers.values():
                older.close()
            self._close_instances()
            self._readers = {epoch: InputReaders(systems)}
        return self._readers[epoch]

    def _close_instances(self) -> None:
        instances, self.instances = self.instances, {}
        for instance in instances.values():
            instance.close()

    def writers(self, job: Hashable, systems: Mapping[str, System], identity: WriterIdentity) -> OutputWriters:
        """`job` names the job; the identity its epoch."""
        key = (job, identity)
        if key not in self._writers:
            for older in self._writers.values():
                older.close()
            self._writers = {key: OutputWriters(systems, identity)}
        return self._writers[key]

    def leave_writers(self) -> None:
        """Forget the writers without closing them. The next ones are new."""
        self._writers = {}
