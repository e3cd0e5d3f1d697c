"""The contract of every system; `penstock.testing.system_contract` is its public name."""

from __future__ import annotations

from penstock.testing.contracts.systems.commits import CommitContract
from penstock.testing.contracts.systems.compaction import CompactionContract
from penstock.testing.contracts.systems.dense import DenseOffsetsContract
from penstock.testing.contracts.systems.ending import EndingContract
from penstock.testing.contracts.systems.fencing import FencingContract
from penstock.testing.contracts.systems.progress import ProgressContract
from penstock.testing.contracts.systems.reading import ReadingContract
from penstock.testing.contracts.systems.retention import StreamRetentionContract
from penstock.testing.contracts.systems.streams import StreamsContract


class SystemContract(
    StreamsContract,
    ReadingContract,
    DenseOffsetsContract,
    CommitContract,
    FencingContract,
    ProgressContract,
    StreamRetentionContract,
    EndingContract,
    CompactionContract,
):
    """Inherit, and give a `system` fixture: a new, empty system for every test.

    What a system promises beyond the rest, its flags say (`System.dense_offsets`, `fences`, `commits_atomically`,
    `reports_appended`, `keeps_progress`, `readers_seek`, `retains`, `ends_streams`, `compacts_on_request`). The tests
    of a flag that is not set are skipped.
    """
