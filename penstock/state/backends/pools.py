"""The threads of a container's backends: one pool for background work and one for transfers, whatever the number of
tasks and stores.

No thread of a pool waits for work of the same pool. Commits and restores, which have pools of their own, wait for both;
background work waits for transfers; a transfer waits for nobody.
"""

from __future__ import annotations

import os
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

_LEAST_MAINTENANCE, _MOST_MAINTENANCE = 2, 8
_TRANSFERS_PER_TASK, _MOST_TRANSFERS = 8, 32


@dataclass(frozen=True, slots=True)
class BackendPools:
    """The pools for a backend's background work and transfers. Whoever made them shuts them down."""

    maintenance: Executor
    """For bases, snapshots, compaction: long work beside the commits. It may wait for transfers."""
    transfers: Executor
    """For single reads, writes and hashes of objects and files. They wait for no other work."""

    @classmethod
    def for_tasks(cls, tasks: int, name: str = "backend") -> BackendPools:
        """Pools sized for a number of tasks, at most 8 and 32 threads, started when first needed."""
        maintenance = min(max(_LEAST_MAINTENANCE, tasks), _MOST_MAINTENANCE)
        transfers = min(_TRANSFERS_PER_TASK * max(1, tasks), _MOST_TRANSFERS)
        return cls(
            ThreadPoolExecutor(maintenance, thread_name_prefix=f"maintenance-{name}"),
            ThreadPoolExecutor(transfers, thread_name_prefix=f"transfer-{name}"),
        )

    def close(self) -> None:
        """Wait for running work; cancel the rest."""
        self.maintenance.shutdown(wait=True, cancel_futures=True)
        self.transfers.shutdown(wait=True, cancel_futures=True)


def process_pools() -> BackendPools:
    """The pools of a process that reads or imports state and is no container. They end with the process; a process that
    was forked from it, where none of their threads is, gets others."""
    return _pools_of(os.getpid())


@cache
def _pools_of(process: int) -> BackendPools:
    return BackendPools.for_tasks(1, "process")
