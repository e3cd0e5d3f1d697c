"""The choice of the checkpoint that a job starts from, and of the version to read it in (SEP-28). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from penstock.base.wording import argument, listed
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions.markers import read_task
from penstock.checkpoint.versions.table import format_of, versions_of
from penstock.errors import CorruptError, IncompatibleError

_LISTED = 10
"""The most checkpoints that an error names one by one."""


def choose_version(record: CheckpointRecord, read_versions: Sequence[int]) -> int:
    """The version that all tasks of a checkpoint are read in.

    Args:
        record: the checkpoint.
        read_versions: `task.checkpoint.read.versions`, the preferred one first.

    Raises:
        IncompatibleError: it has no version that may be read.
    """
    there = versions_of(record)
    for version in read_versions:
        if version in there:
            return version
    raise IncompatibleError(
        f"checkpoint {record.id} has no version that task.checkpoint.read.versions allows ("
        f"{_listed(read_versions)}); it has: {_numbers(there)}. Add one of these to the key"
    )


def markers_elsewhere(record: CheckpointRecord, read_versions: Sequence[int]) -> str:
    """A hint if another version of a checkpoint has markers of backends that the version in which it is read cannot
    keep; else an empty text. A damaged version gives no hint, and hides no error.

    Args:
        record: a checkpoint that could not be restored.
        read_versions: `task.checkpoint.read.versions`.
    """
    chosen = format_of(choose_version(record, read_versions))
    for other in sorted(versions_of(record) - {chosen.version}):
        try:
            names = {name for task in record.tasks for name in read_task(record, task, other, {}).markers}
        except CorruptError:
            continue
        if found := sorted(f"`{name}`" for name in names if not chosen.holds(name)):
            return (
                f". Version {other} of the checkpoint has markers of {listed(found)}: to restore from them, set "
                f"task.checkpoint.read.versions to {other},{chosen.version}; it is {_listed(read_versions)} now"
            )
    return ""


def refuse_unknown(record: CheckpointRecord, known: Collection[str]) -> None:
    """Refuse to restore a checkpoint without a wing that it needs.

    Args:
        record: the checkpoint.
        known: the names of the sections that can be restored here.

    Raises:
        IncompatibleError: another section is needed.
    """
    if missing := record.sections.missing(known):
        named = listed([f"`{name}`" for name in missing])
        raise IncompatibleError(
            f"checkpoint {record.id} cannot be restored here: it needs {named}, which wrote a section of it, and this "
            "installation of Penstock has nothing of that name. Install the distribution that brings it, or start from "
            f"an older checkpoint ({argument('from_checkpoint')})"
        )


def choose_newest(checkpoints: Sequence[CheckpointRecord], read_versions: Sequence[int]) -> CheckpointRecord | None:
    """The checkpoint that a start without `from_checkpoint` begins with: the newest one; None if there is none.

    Args:
        checkpoints: those that may be restored, oldest first.
        read_versions: `task.checkpoint.read.versions`.

    Raises:
        IncompatibleError: it has no version that may be read. If an older one has, a start with that would process and
            send messages again; the error names the newer ones.
    """
    if not checkpoints:
        return None
    newest, allowed = checkpoints[-1], set(read_versions)
    readable = [number for number, each in enumerate(checkpoints) if versions_of(each) & allowed]
    if not readable or checkpoints[readable[-1]] == newest:
        choose_version(newest, read_versions)
        return newest
    older, passed_over = checkpoints[readable[-1]], checkpoints[readable[-1] + 1 :]
    named = ", ".join(f"{each.id} (version {_numbers(versions_of(each))})" for each in passed_over[-_LISTED:])
    more = f"{len(passed_over) - _LISTED} more, and " if len(passed_over) > _LISTED else ""
    raise IncompatibleError(
        f"a start would go back to checkpoint {older.id}, because task.checkpoint.read.versions is "
        f"{_listed(read_versions)}, and pass over the newer checkpoints {more}{named}. Everything processed since "
        "would be processed and sent again. To continue from the newest one, add "
        f"{_numbers(versions_of(newest))} to task.checkpoint.read.versions; to go back on purpose, give "
        f"{argument('from_checkpoint', str(older.id))}"
    )


def _numbers(versions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(versions))) or "none"


def _listed(read_versions: Sequence[int]) -> str:
    return ",".join(map(str, read_versions))
