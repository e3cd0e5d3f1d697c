"""The contract of a system that holds streams: an admin, a reader of offset ranges, a writer.

Offsets are non-negative integers that grow within a partition. A position is always the *next* offset to read;
ranges are half-open, `[start, end)`. A system of your own is a subclass of `System` and imports everything from here;
`penstock.system.ranges` has the code that most systems share, and `penstock.testing.system_contract` the tests to pass.
"""

from penstock.system.contract.admin import SystemAdmin
from penstock.system.contract.definition import System, check_options, check_stream_name, is_stream_name
from penstock.system.contract.messages import (
    CHUNK_BYTES,
    ColumnChunk,
    Compaction,
    OffsetRange,
    OpenTransaction,
    PartitionOffsets,
    RawMessage,
    RawRecord,
    RecordLimits,
    SystemReader,
    headers_in,
    without_headers,
)
from penstock.system.contract.writer import (
    Appended,
    AppendedAtCommit,
    MarkedAtCommit,
    Progress,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
)

__all__ = [
    "CHUNK_BYTES",
    "Appended",
    "AppendedAtCommit",
    "ColumnChunk",
    "Compaction",
    "MarkedAtCommit",
    "OffsetRange",
    "OpenTransaction",
    "PartitionOffsets",
    "Progress",
    "RawMessage",
    "RawRecord",
    "RecordLimits",
    "System",
    "SystemAdmin",
    "SystemReader",
    "SystemWriter",
    "WriterIdentity",
    "WriterTransaction",
    "check_may_mark",
    "check_options",
    "check_stream_name",
    "headers_in",
    "is_stream_name",
    "without_headers",
]
