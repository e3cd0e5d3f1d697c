"""The contract of every system, as tests that each system's own test class inherits.

```
class TestMySystem(SystemContract):
    @pytest.fixture
    def system(self) -> System:
        return MySystem(...)
```
"""

from __future__ import annotations

from penstock.testing.contracts import (
    COMPACTOR,
    STREAM,
    append,
    append_all,
    messages,
    read,
    read_all,
    read_compacted,
    records,
    ssp,
)
from penstock.testing.contracts.compaction import CompactionContract
from penstock.testing.contracts.reading import DenseOffsetsContract, ReadingContract
from penstock.testing.contracts.streams import EndingContract, StreamRetentionContract, StreamsContract
from penstock.testing.contracts.writers import CommitContract, FencingContract, ProgressContract


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


__all__ = [
    "COMPACTOR",
    "STREAM",
    "SystemContract",
    "append",
    "append_all",
    "messages",
    "read",
    "read_all",
    "read_compacted",
    "records",
    "ssp",
]
