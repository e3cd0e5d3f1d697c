"""The messages between the driver and the direct worker. Values, pickled over a socket that only they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.system.base import WriterIdentity
from penstock.wire.address import Lane
from penstock.wire.tls import TlsIdentity


@dataclass(frozen=True, slots=True)
class RunOrder:
    """One run of a batch."""

    epoch: int
    batch: Batch
    portions: Mapping[int, Sequence[tuple[int, Portion]]]
    lanes: tuple[Lane, ...]
    writer: WriterIdentity
    secret: str = field(repr=False)
    tls: TlsIdentity | None
    limit_bytes: int
    """The run breaks off once its messages take more memory than this."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker has loaded the application, and takes orders."""


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """The worker is alive. `progress` changes with each message that its own stages process or write; it is None while
    the worker waits for containers, which give signs of their own."""

    progress: object
    writes: bool = False
    """True while the outputs are being written."""


@dataclass(frozen=True, slots=True)
class RunReports:
    """The run is complete: the payloads of all reports."""

    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RunBreak:
    """The run broke off. `why`: the cause in words."""

    why: str
    declined: bool = False
    """True if it broke off before anything but the inputs was touched, and the worker is as before. Otherwise the
    worker takes no more orders."""


Answer: TypeAlias = WorkerReady | SignOfLife | RunReports | RunBreak
