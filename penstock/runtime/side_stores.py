"""The interface to the stores that are filled from the outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.batch.batch import Batch
from penstock.state.stores.view import SideView


class SideStores(Protocol):
    """The side stores of a container: stores of side inputs, and pushed tables. Thread-safe."""

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        """By store, the view for this run of this batch. All are taken at once, between two updates, when the first
        attempt of the task asks; later attempts of the same run get the same ones."""
        ...

    def release(self, task: int, batch: int) -> None:
        """Release the views of batches up to this one, which have ended."""
        ...


class NoSideStores:
    """The side stores of a job without any."""

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        return {}

    def release(self, task: int, batch: int) -> None: ...


NO_SIDE_STORES = NoSideStores()
