"""A user's job as a file, from which workers read it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.api.ssp import SystemStream
from penstock.system.base import RawRecord

REFERENCE = "reference.json"
"""The file, beside the job's own, with the result of a life without faults."""


@dataclass(frozen=True, slots=True)
class UsersJob:
    """A user's job with its inputs, as it is pickled for the workers.

    Attributes:
        graph: the pickled graph of the application.
        config: the keys of its configuration that count in a simulation.
        streams: all of its streams, with their number of partitions.
        feed: the records of the inputs.
        late: inputs whose messages may come later than others of their partition.
        doubled: inputs whose messages may come twice.
        exactly_once: outputs that have each message once.
        invariants: the pickled functions (inputs, outputs, stores).
        compares: whether to compare each life with one without faults.
        network: the application's code may reach the network.
        limit_s: the most seconds that a life takes.
        memory_bytes: the most memory that a life takes.
    """

    graph: bytes
    config: Mapping[str, str]
    streams: Mapping[SystemStream, int]
    feed: Sequence[tuple[SystemStream, int, RawRecord]]
    late: frozenset[SystemStream]
    doubled: frozenset[SystemStream]
    exactly_once: frozenset[SystemStream]
    invariants: bytes
    compares: bool
    network: bool
    limit_s: float
    memory_bytes: int

    def write(self, folder: Path) -> Path:
        """Write it to a file of the folder. Returns its path."""
        path = folder / "job.pickle"
        path.write_bytes(pickle.dumps(self))
        return path

    @staticmethod
    def read(path: str) -> Any:
        return pickle.loads(Path(path).read_bytes())  # noqa: S301 - the parent process wrote it
