"""The contract of every system, as tests that each system's own test class inherits.

```
class TestMySystem(SystemContract):
    @pytest.fixture
    def system(self) -> System:
        return MySystem(...)
```
"""

from __future__ import annotations

from penstock.testing.contracts.systems import SystemContract
from penstock.testing.contracts.systems.room import (
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
