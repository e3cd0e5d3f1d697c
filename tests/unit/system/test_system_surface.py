"""The interface for systems of one's own does not change by accident: `penstock.system.base` and
`penstock.system.ranges`."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from penstock.system import base, ranges

SURFACE = """
Appended
AppendedAtCommit(append)
AppendedAtCommit.abort()
AppendedAtCommit.append(ssp, records)
AppendedAtCommit.appended()
AppendedAtCommit.commit()
CHUNK_BYTES
ColumnChunk(offsets, timestamps, keys, values)
Compaction(untouched_from, lag_ms, deletes_stay_ms)
MarkedAtCommit(identity, append)
MarkedAtCommit.abort()
MarkedAtCommit.mark(ssp, progress)
OffsetRange(ssp, start, end)
OpenTransaction(offset, messages, since_ms)
PartitionOffsets(oldest, upcoming, ended=False)
PartitionOffsets.newest
Progress(slot, chunk)
Progress.check_follows(last, ssp)
RawMessage
RawRecord
RecordLimits(needs_key=False, max_bytes=None, compression=None, max_plain_bytes=None)
RecordLimits.least_bytes
RecordLimits.refused(key, value, headers_bytes=0)
RecordLimits.remedy
System()
System.admin()
System.carries_headers
System.commits_atomically
System.compacts_by_age
System.compacts_on_request
System.configured(name, options)
System.dense_offsets
System.ends_streams
System.fences
System.has_keys
System.keeps_owners
System.keeps_progress
System.lag(position, upcoming)
System.lag_unit
System.messages_in(ends)
System.reader()
System.readers_seek
System.readers_share
System.reports_appended
System.retains
System.serving(stream)
System.shows_positions
System.sign(writer, takes_unsigned)
System.signed_objects
System.signs
System.takes_root
System.writer(identity)
SystemAdmin()
SystemAdmin.check_writable(stream)
SystemAdmin.close()
SystemAdmin.compact(offsets, writer, min_dirty_ratio=0.0, dry_run=False)
SystemAdmin.compaction(stream)
SystemAdmin.complete_from(stream)
SystemAdmin.create_compacted(stream, partitions, settings)
SystemAdmin.create_stream(stream, partitions, retention=None)
SystemAdmin.delete_stream(stream)
SystemAdmin.deletions_kept_ms(stream)
SystemAdmin.end_stream(stream)
SystemAdmin.fence(stream, writer)
SystemAdmin.keeps_order(stream)
SystemAdmin.keeps_progress_of(name)
SystemAdmin.message_name(ssp, offset, with_line=False)
SystemAdmin.missing_columns(stream, names)
SystemAdmin.named_offset(ssp, name)
SystemAdmin.named_partition(stream, name)
SystemAdmin.offset_at_time(ssp, timestamp_ms)
SystemAdmin.offsets(stream)
SystemAdmin.open_transactions(stream)
SystemAdmin.own(stream, owner)
SystemAdmin.owner(stream)
SystemAdmin.owners()
SystemAdmin.partition_count(stream)
SystemAdmin.progress_of(name, ssps)
SystemAdmin.progress_place(name)
SystemAdmin.published(stream, name, slot)
SystemAdmin.record_limits(stream)
SystemAdmin.resolve_startpoint_to_offset(ssp, startpoint, clamp=False)
SystemAdmin.retention(stream)
SystemAdmin.set_retention(stream, retention)
SystemAdmin.show_positions(group, positions)
SystemAdmin.stream_identity(stream)
SystemAdmin.streams()
SystemReader()
SystemReader.close()
SystemReader.expect(ranges)
SystemReader.read(offsets, chunk_messages, chunk_bytes=8388608)
SystemReader.read_columns(offsets, schema, chunk_messages)
SystemReader.read_compacted(offsets, chunk_messages, chunk_bytes=8388608)
SystemWriter()
SystemWriter.append(ssp, records)
SystemWriter.begin()
SystemWriter.close()
SystemWriter.progress(ssps)
WriterIdentity(name, epoch)
WriterTransaction()
WriterTransaction.abort()
WriterTransaction.append(ssp, records)
WriterTransaction.appended()
WriterTransaction.commit()
WriterTransaction.mark(ssp, progress)
check_may_mark(identity)
check_options(name, options, known)
check_stream_name(stream)
headers_in(message)
is_stream_name(text)
without_headers(records)
Compacted(start=0, end=0, kept=0)
Compacted.check_compact(offsets, upcoming)
Compacted.check_read(offsets, upcoming)
Compacted.is_due(offsets, min_dirty_ratio)
Compacted.with_range(offsets, kept)
Compacted.with_start(start)
check_call(offsets, chunk_messages=1, chunk_bytes=1)
check_inside(offsets, ends)
missing(offsets, expected, found)
take_chunk(messages, chunk_bytes, chunk_messages=None)
"""
"""A change here is one for everybody who has a system of their own: CHANGELOG.md says it."""

MODULES = [base, ranges]


def parameters(function: object) -> str:
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in found]
    return f"({', '.join(name for name in shown if name not in ('self', 'cls'))})"


def described(module: ModuleType) -> list[str]:
    """Every public name with its parameters, and the members of each class that are its own."""
    lines = []
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        if inspect.isclass(thing):
            lines.append(name + (parameters(thing) if "__init__" in vars(thing) else "()"))
            fields = getattr(thing, "__dataclass_fields__", {})
            for member, value in sorted(vars(thing).items()):
                if member.startswith("_") or member in fields:
                    continue
                function = getattr(value, "__func__", value)
                lines.append(f"{name}.{member}" + (parameters(function) if inspect.isfunction(function) else ""))
        else:
            lines.append(name + (parameters(thing) if inspect.isfunction(thing) else ""))
    return lines


def test_the_surface_is_the_one_that_is_written_down() -> None:
    assert [line for module in MODULES for line in described(module)] == SURFACE.split("\n")[1:-1]


@pytest.mark.parametrize("module", MODULES)
def test_nothing_else_is_offered(module: ModuleType) -> None:
    """Names that a module imports for its own use are no part of it."""
    made_here = {
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith("penstock.system")
    }
    imported = {"OffsetRange", "PartitionOffsets"} if module is ranges else set()
    assert made_here - imported <= set(module.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_all_of_it_is_documented(module: ModuleType) -> None:
    things = [(name, getattr(module, name)) for name in module.__all__]
    for name, thing in [each for each in things if inspect.isclass(each[1]) or inspect.isfunction(each[1])]:
        text = inspect.getdoc(thing) or ""
        assert text, name
        assert module is ranges or ">>>" in text or name == "WriterTransaction", f"{name} has no example"
        own = vars(thing).items() if inspect.isclass(thing) else [(name, thing)]
        for member, value in own:
            function = getattr(value, "__func__", value)
            if member.startswith("_") or not inspect.isfunction(function):
                continue
            said = inspect.getdoc(function) or ""
            assert said, f"{name}.{member}"
            if module is base and "AtCommit" not in name and parameters(function).count(",") > 0:
                assert "Args:" in said, f"{name}.{member}"
