"""The folders of a container's stores on this host, and the engines over them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from penstock.checkpoint.id import CheckpointId
from penstock.config.model import JobConfig
from penstock.state.copies import LocalCopies
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import open_engine, open_restored


def stores_directory(config: JobConfig, job_uid: str) -> Path:
    """The folder of a job's stores on a host. A job that was deleted and created again has another one."""
    return Path(config.job.logged_store_base_dir) / f"{config.job.name}-{config.job.id}-{job_uid}"


class StoreFolders:
    """`<base>/<store>/<task>/`: `live-<epoch>-<container>`, the working copy, private to this container and epoch;
    `making-...`, a copy being uploaded; `copy-<checkpoint id>`, see `penstock.state.copies`."""

    def __init__(self, config: JobConfig, stores: tuple[str, ...], base: Path, container: str, epoch: int) -> None:
        self.stores = stores
        self.base = base
        self._config = config
        self._container = container
        self._epoch = epoch
        self._live_name = f"live-{epoch}-{container}"
        self._copies: dict[tuple[str, int], LocalCopies] = {}
        self._adopted: dict[tuple[str, int], Path] = {}
        """Working copies that an earlier epoch or a standby has made, and that stay in their folders."""

    def of_store(self, store: str) -> Path:
        return self.base / store

    def live(self, store: str, task: int) -> Path:
        """The working copy's folder, without the remains of an older epoch."""
        adopted = self._adopted.get((store, task))
        folder = self._folder(store, task)
        for pattern in ("live-*", "making-*"):
            for path in folder.glob(pattern):
                epoch = path.name.split("-")[1]
                # Whoever still has one of an older epoch open is fenced.
                if epoch.isdigit() and int(epoch) < self._epoch and path != adopted:
                    shutil.rmtree(path, ignore_errors=True)
        return folder / self._live_name

    def adopt(self, store: str, task: int, directory: Path) -> None:
        """Make a folder the working copy. It is removed as such."""
        self._adopted[store, task] = directory

    def leave(self, store: str, task: int) -> Path:
        """The working copy's folder, which stays: it has another owner from now on."""
        return self._adopted.pop((store, task), None) or self._folder(store, task) / self._live_name

    def making(self, store: str, task: int, checkpoint_id: CheckpointId) -> Path:
        return self._folder(store, task) / f"making-{self._epoch}-{self._container}-{checkpoint_id}"

    def copies(self, store: str, task: int) -> LocalCopies:
        place = (store, task)
        if place not in self._copies:
            self._copies[place] = LocalCopies(self._folder(store, task))
        return self._copies[place]

    def open(self, store: str, directory: Path, *, read_only: bool = False) -> Engine:
        return open_engine(self._config.store(store), directory, read_only=read_only)

    def open_restored(self, store: str, directory: Path) -> Engine:
        """The store's engine over a folder that a restore has filled, whatever kind of engine wrote the files."""
        return open_restored(self._config.store(store), directory)

    def remove_live(self, store: str, task: int) -> None:
        """Remove the working copy and unfinished copies; they are never read again."""
        folder = self._folder(store, task)
        adopted = self._adopted.pop((store, task), None)
        if adopted is not None:
            shutil.rmtree(adopted, ignore_errors=True)
        for path in (*folder.glob(f"live-{self._epoch}-*"), *folder.glob(f"making-{self._epoch}-*")):
            if self._container in path.name:
                shutil.rmtree(path, ignore_errors=True)

    def remove_all_live(self, tasks: Iterable[int]) -> None:
        for task in tasks:
            for store in self.stores:
                self.remove_live(store, task)

    def _folder(self, store: str, task: int) -> Path:
        return self.base / store / str(task)
