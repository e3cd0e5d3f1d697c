"""The manifests of a system's streams, by stream and partition."""

from __future__ import annotations

from penstock.api.ssp import SystemStreamPartition
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.system.files.manifests import FolderCommits, PartitionLog
from penstock.system.files.settings import FilesSettings


class PartitionLogs:
    """The manifests of partitions, by stream."""

    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings
        self._stores: dict[str, ObjectStore] = {}
        self._logs: dict[SystemStreamPartition, PartitionLog] = {}
        self._commits: dict[str, FolderCommits] = {}

    def get(self, ssp: SystemStreamPartition) -> PartitionLog:
        if ssp not in self._logs:
            self._logs[ssp] = PartitionLog(self.folder(ssp.stream), ssp)
        return self._logs[ssp]

    def commits(self, stream: str) -> FolderCommits:
        if stream not in self._commits:
            self._commits[stream] = FolderCommits(self.folder(stream))
        return self._commits[stream]

    def folder(self, stream: str) -> ObjectStore:
        if stream not in self._stores:
            self._stores[stream] = open_store(self._settings.folder(stream).url, is_for_others=True)
        return self._stores[stream]

    def close(self) -> None:
        while self._stores:
            self._stores.popitem()[1].close()
