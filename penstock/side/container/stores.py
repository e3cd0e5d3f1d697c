"""All side stores of a container as one, for its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.batch.batch import Batch
from penstock.runtime.side_stores import SideStores
from penstock.state.stores.view import SideView


class JoinedSideStores:
    """The side stores of several services as one. Thread-safe if the services are."""

    def __init__(self, services: Sequence[SideStores]) -> None:
        self._services = tuple(services)

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        return {store: view for service in self._services for store, view in service.views(task, batch).items()}

    def release(self, task: int, batch: int) -> None:
        for service in self._services:
            service.release(task, batch)
