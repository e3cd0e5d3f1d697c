"""The changelog stream of a first store, and what is in it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from penstock.api.ssp import SystemStreamPartition
from penstock.config import load_config
from penstock.config.model import JobConfig
from penstock.objects.store import ObjectStore
from penstock.state.backends.changelog_partition import ChangelogRange
from penstock.state.backends.changelog_stream import ChangelogStreamFactory
from penstock.system.base import PartitionOffsets, RawMessage, System
from penstock.testing.state_backend_contract import BackendHarness
from penstock.testing.system_contract import read_compacted

STREAM = "contract-1-first-changelog"
SSP = SystemStreamPartition("local", STREAM, 0)


def make_harness(objects: ObjectStore, directory: Path, system: System) -> BackendHarness:
    return BackendHarness(ChangelogStreamFactory(), objects, directory, "memory", {"local": system})


def log(system: System) -> list[RawMessage]:
    """The messages in the first store's partition of task 0."""
    ends = ends_of(system)
    return read_compacted(system, SSP, ends.oldest, ends.upcoming)


def ends_of(system: System) -> PartitionOffsets:
    admin = system.admin()
    try:
        return admin.offsets(STREAM)[0]
    finally:
        admin.close()


def pairs(messages: Sequence[RawMessage]) -> list[tuple[bytes | None, bytes | None]]:
    return [(key, value) for _, _, key, value, *_ in messages]


def marker_of(markers: dict[str, str]) -> ChangelogRange:
    return ChangelogRange.parse(markers["first"])


def config(**overrides: object) -> JobConfig:
    return load_config(overrides={"job.name": "contract", "job.id": "1", **overrides}, environ={})


def random_changes(rng: random.Random) -> dict[bytes, bytes | None]:
    keys = rng.sample((b"", b"a", b"b", b"c", b"d", b"e"), rng.randrange(5))
    return {key: rng.choice((None, b"", b"1", b"2", rng.randbytes(3))) for key in keys}
