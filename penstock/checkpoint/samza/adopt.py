"""Translates a checkpoint of Samza into a job's own terms, or says why it does not fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import argument, counted
from penstock.checkpoint.edit import MAX_OFFSET, CheckpointContent, inputs_text
from penstock.checkpoint.samza.imported import SamzaCheckpoint
from penstock.checkpoint.versions.changelog_marker import ChangelogOffset
from penstock.checkpoint.versions.value import TaskCheckpoint
from penstock.errors import IncompatibleError
from penstock.system.base import PartitionOffsets

_NUMBER = re.compile(r"[0-9]{1,19}")


def adopt(
    found: SamzaCheckpoint,
    inputs: Mapping[int, Collection[SystemStreamPartition]],
    stores: Collection[str],
    ends: Mapping[SystemStreamPartition, PartitionOffsets],
    left_out: Mapping[str, str],
) -> tuple[CheckpointContent, list[str]]:
    """The content for the log of a job with these inputs by task, and notes for the user. Each of the stores needs a
    marker in every task. Samza's last processed offsets become next offsets, one more each.

    A partition without one was never processed: it begins at its oldest message, which skips nothing and, since no
    store knows anything of it, counts nothing twice. Markers of the backends in `left_out`, which maps each to the
    reason, are left out.

    Raises:
        IncompatibleError: the tasks, an input or a store are not the job's; an offset is no number; a store of a task
            would have no marker; or nothing tells where a partition begins.
    """
    _refuse_other_tasks(found, inputs)
    first_read: list[SystemStreamPartition] = []
    positions: dict[int, dict[SystemStreamPartition, int]] = {}
    markers: dict[int, dict[str, dict[str, str]]] = {}
    for number, task in found.tasks.items():
        _refuse_unknown(number, task, inputs[number], stores)
        positions[number] = {}
        for ssp in sorted(inputs[number]):
            last = task.offsets.get(ssp)
            if last is None:
                first_read.append(ssp)
            positions[number][ssp] = _oldest(ssp, ends) if last is None else _next(ssp, last)
        markers[number] = {name: dict(own) for name, own in task.markers.items() if name not in left_out}
        _refuse_bare_store(number, markers[number], stores, left_out)
    notes = [f"the markers of `{name}` are left out: {why}" for name, why in sorted(left_out.items())]
    if first_read:
        named = inputs_text(dict.fromkeys(first_read))
        notes.append(f"no message of {named} was processed yet: they begin at their oldest message")
    return CheckpointContent(positions, markers), notes


def _refuse_other_tasks(found: SamzaCheckpoint, inputs: Collection[int]) -> None:
    missing = sorted(set(inputs) - found.tasks.keys())
    more = sorted(found.tasks.keys() - set(inputs))
    if missing or more:
        which = [f"has nothing of {_tasks(missing)}"] if missing else []
        which += [f"has also {_tasks(more)}"] if more else []
        raise IncompatibleError(
            f"the job has {counted(len(inputs), 'task')}, 0 to {len(inputs) - 1}; the file "
            f"{' and '.join(which)}. "
            "Keys would move away from their state"
        )


def _tasks(numbers: list[int]) -> str:
    return f"task{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _refuse_unknown(
    number: int, task: TaskCheckpoint, known: Collection[SystemStreamPartition], stores: Collection[str]
) -> None:
    for ssp, offset in sorted(task.offsets.items()):
        if ssp in known:
            continue
        hint = ""
        if ChangelogOffset.is_one(offset or ""):
            hint = (
                f". `{offset}` is the position of a changelog: set `stores.<name>.changelog` to `{ssp.system_stream}`"
            )
        raise IncompatibleError(
            f"task {number} of the file reads `{ssp}`; the job's task reads {inputs_text(dict.fromkeys(known))}{hint}"
        )
    for backend, own in task.markers.items():
        for store in own:
            if store not in stores:
                has = ", ".join(f"`{name}`" for name in sorted(stores)) or "no stores"
                raise IncompatibleError(
                    f"task {number} of the file has a marker of store `{store}` (by {backend}), which would be lost: "
                    f"the job has {has}"
                )


def _refuse_bare_store(
    number: int, markers: Mapping[str, Mapping[str, str]], stores: Collection[str], left_out: Mapping[str, str]
) -> None:
    for store in sorted(stores):
        if not any(store in own for own in markers.values()):
            why = "".join(f"; {name} is left out: {reason}" for name, reason in sorted(left_out.items()))
            raise IncompatibleError(
                f"the file has no marker that store `{store}` of task {number} could be restored from, so its state "
                f"would be lost{why}"
            )


def _next(ssp: SystemStreamPartition, last: str) -> int:
    if not (_NUMBER.fullmatch(last) and int(last) < MAX_OFFSET):
        raise IncompatibleError(
            f"`{ssp}`: the last processed offset `{last}` is not a Penstock offset: offsets are integers"
        )
    return int(last) + 1


def _oldest(ssp: SystemStreamPartition, ends: Mapping[SystemStreamPartition, PartitionOffsets]) -> int:
    if ssp not in ends:
        raise IncompatibleError(
            f"the file has no offset of `{ssp}`, and its oldest message cannot be looked up, so there is no offset "
            f"to begin at. Give the configuration of its system with {argument('file')}"
        )
    return ends[ssp].oldest
