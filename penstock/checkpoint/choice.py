"""The choice of the checkpoint that a job starts from, and of the version to read it in (SEP-28). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions.table import versions_of
from penstock.errors import IncompatibleError
from penstock.wording import argument

_LISTED = 10
"""The most checkpoints that an error names one by one."""


@dataclass(frozen=True, slots=True)
class ChosenVersion:
    """The checkpoint a job starts from, and the version of it that all its tasks are read in."""

    record: CheckpointRecord
    version: int


def choose_version(
    checkpoints: Sequence[CheckpointRecord], read_versions: Sequence[int], max_age_ms: int
) -> ChosenVersion | None:
    """Choose checkpoint and version, once for the whole job; None if there is no checkpoint.

    Args:
        checkpoints: those that may be restored, oldest first.
        read_versions: `task.checkpoint.read.versions`, the preferred one first.
        max_age_ms: `task.live.checkpoint.max.age`. As in Samza, a newer checkpoint that has only a less preferred
            version takes the place of an older one only if it is more than this much newer; with 0 the latest wins.
            A start refuses to go back like that (`choose_newest`).

    Raises:
        IncompatibleError: there are checkpoints, but none has a version that may be read.
    """
    held: ChosenVersion | None = None
    for record in checkpoints:
        there = versions_of(record)
        version = next((each for each in read_versions if each in there), None)
        if version is None:
            continue
        if held is None or _overrides(ChosenVersion(record, version), held, read_versions, max_age_ms):
            held = ChosenVersion(record, version)
    if held is None and checkpoints:
        last = checkpoints[-1]
        found = _numbers(versions_of(last))
        raise IncompatibleError(
            f"no checkpoint has a version that task.checkpoint.read.versions allows ("
            f"{','.join(map(str, read_versions))}); the last one, {last.id}, has: {found}. Add one of these to the key"
        )
    return held


def choose_newest(
    checkpoints: Sequence[CheckpointRecord], read_versions: Sequence[int], max_age_ms: int
) -> ChosenVersion | None:
    """As `choose_version`, for a start without `from_checkpoint`: the choice must be the newest checkpoint.

    Args:
        checkpoints: those that may be restored, oldest first.
        read_versions: `task.checkpoint.read.versions`, the preferred one first.
        max_age_ms: `task.live.checkpoint.max.age`, in milliseconds.

    Raises:
        IncompatibleError: newer checkpoints would be passed over, so that messages would be processed and sent again;
            names them. Or none has a version that may be read.
    """
    chosen = choose_version(checkpoints, read_versions, max_age_ms)
    if chosen is None or chosen.record == checkpoints[-1]:
        return chosen
    passed_over = checkpoints[checkpoints.index(chosen.record) + 1 :]
    newest = passed_over[-1]
    listed = ", ".join(f"{each.id} (version {_numbers(versions_of(each))})" for each in passed_over[-_LISTED:])
    more = f"{len(passed_over) - _LISTED} more, and " if len(passed_over) > _LISTED else ""
    continued = (
        f"give {argument('from_checkpoint', str(newest.id))}"
        if versions_of(newest) & set(read_versions)
        else f"add {_numbers(versions_of(newest))} to task.checkpoint.read.versions"
    )
    raise IncompatibleError(
        f"a start would go back to checkpoint {chosen.record.id}, because task.checkpoint.read.versions is "
        f"{','.join(map(str, read_versions))} and task.live.checkpoint.max.age is {max_age_ms} ms, and pass over the "
        f"newer checkpoints {more}{listed}. Everything processed since would be processed and sent again. To continue "
        f"from the newest one, {continued}; to go back on purpose, give "
        f"{argument('from_checkpoint', str(chosen.record.id))}"
    )


def _numbers(versions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(versions))) or "none"


def _overrides(newer: ChosenVersion, held: ChosenVersion, order: Sequence[int], max_age_ms: int) -> bool:
    if order.index(newer.version) <= order.index(held.version):
        return True
    return newer.record.id.millis - held.record.id.millis > max_age_ms
