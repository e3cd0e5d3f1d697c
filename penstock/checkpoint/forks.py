"""Forks: jobs whose state begins with the objects of another job, by reference.

A fork has a separate folder and log. Its `home` names the parent, and the parent's checkpoint with which the fork
begins. That checkpoint has a label in the parent's log, the fork's **pin**, which keeps its objects. Objects that the
fork's backends do not find in the folder of the fork are in that of the parent (`state/backends/resources.py`). Two
jobs never write one name: names of objects have the epoch, and the fork's epochs begin far above those of the parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import orjson
from msgspec import Struct

from penstock.base.documents import decode_format, decoding
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import Labelled
from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.job.identity import known_uid
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

_FORMAT = 1
_PIN = "fork:"
_JOB = ""
EPOCHS_APART = 1_000_000
"""The epochs of a fork begin so far above those of its parent that the parent, which continues, never reaches them.
Each start takes one, and so does each loss of a container."""


class _HomeDocument(Struct):
    name: str
    id: str
    uid: str
    checkpoint: str
    roots: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Home:
    """The parent of a fork, its uid, and the id of the checkpoint that was forked."""

    parent: JobPaths
    uid: str
    checkpoint: str
    roots: Mapping[str, str] = field(default_factory=dict)
    """By backend, the root with the parent's objects, if the fork is in another root: its parent does not know it, and
    keeps nothing for it. Under the empty name, that of the job. Empty: the fork is in the root of its parent."""

    def encode(self) -> bytes:
        fields = {
            "format": _FORMAT,
            "name": self.parent.name,
            "id": self.parent.job_id,
            "uid": self.uid,
            "checkpoint": self.checkpoint,
        }
        return orjson.dumps(fields | ({"roots": dict(self.roots)} if self.roots else {}))

    @classmethod
    def decode(cls, data: bytes, key: str) -> Home:
        """Raises CorruptError, or IncompatibleError for a newer format; both name the key."""
        what = f"`{key}` is damaged, it does not say which job this one was forked from"
        with decoding(what):
            name = f"`{key}` was written by another version of Penstock: it"
            found = decode_format(_HomeDocument, data, what, name, _FORMAT)
            return cls(JobPaths(found.name, found.id), found.uid, found.checkpoint, found.roots)


def pin_of(fork: JobPaths) -> str:
    """The label of a fork's pin in its parent's log. No person can give a checkpoint this label."""
    return f"{_PIN}{fork.root}"


def fork_of(label: str) -> JobPaths | None:
    """The fork that a label is the pin of; None for any other label."""
    if not label.startswith(_PIN):
        return None
    name, _, job_id = label.removeprefix(_PIN).rpartition("-")
    return JobPaths(name, job_id)


def read_home(objects: ObjectStore, paths: JobPaths) -> Home | None:
    """The home of a job; None if it is no fork, or has all of its objects by now."""
    try:
        return Home.decode(objects.get(paths.home), paths.home)
    except NotFoundError:
        return None


def homes_of(
    objects: ObjectStore, paths: JobPaths, open_root: Callable[[str], ObjectStore]
) -> Iterator[tuple[JobPaths, Mapping[str, str]]]:
    """The jobs whose objects a job may need, each with the `Home.roots` of its objects: its parent, and the parent's
    parent, if the parent is a fork. Another job that now has the name of a parent is not among them. `open_root` opens
    a root."""
    roots: Mapping[str, str] = {}
    while (home := read_home(objects, paths)) is not None:
        if home.roots:
            roots = home.roots
            objects = open_root(roots[_JOB])
        if known_uid(objects, home.parent) != home.uid:
            return
        paths = home.parent
        yield paths, roots


def root_of(roots: Mapping[str, str], backend: str) -> str:
    """The root of a backend's objects, by `Home.roots`."""
    return roots.get(backend, roots[_JOB])


def pinned(objects: ObjectStore, paths: JobPaths, home: Home) -> Labelled | None:
    """The pin of a fork; None if the parent does not have it any more, is being deleted, or is another job by now."""
    if known_uid(objects, home.parent) != home.uid or is_being_deleted(objects, home.parent):
        return None
    view = CheckpointLog(objects, home.parent).read("report")
    found = view.labels.get(pin_of(paths))
    held = found is not None and view.retained.get(found.slot) == found.checkpoint
    return found if found is not None and held and str(found.checkpoint) == home.checkpoint else None


def is_being_deleted(objects: ObjectStore, paths: JobPaths) -> bool:
    """True if somebody began to delete the job, and has not come to the end."""
    try:
        objects.get(paths.deleting)
    except NotFoundError:
        return False
    return True


def check_whole(objects: ObjectStore, paths: JobPaths) -> None:
    """Raise IncompatibleError, with instructions, if a job has not all of its state: it is being deleted, or it is a
    fork that is not complete, or it or one of its parents has lost its pin."""
    if is_being_deleted(objects, paths):
        raise IncompatibleError(
            f"job `{paths.root}` is being deleted, or the command that deleted it was interrupted. Repeat it: "
            f"`penstock job delete {paths.root}`"
        )
    home = read_home(objects, paths)
    if home is None or home.roots:
        return
    parent = home.parent.root
    if CheckpointLog(objects, paths).read("report").latest is None:
        raise IncompatibleError(
            f"job `{paths.root}` was to be a fork of job `{parent}`, and the fork was not completed. Repeat the "
            f"command (`penstock fork ... --from {home.checkpoint}`), or delete what there is "
            f"(`penstock job delete {paths.root}`)"
        )
    if pinned(objects, paths, home) is None:
        raise IncompatibleError(
            f"job `{paths.root}` is a fork of checkpoint {home.checkpoint} of job `{parent}`, which does not keep this "
            f"checkpoint for it any more: the label `{pin_of(paths)}` is gone, or somebody deleted that job or began "
            f"to. Objects of the state may be missing, so nothing is started. Bring the folder `{parent}` back from a "
            f"backup of the store, or delete the fork (`penstock job delete {paths.root}`) and fork again"
        )
    check_whole(objects, home.parent)


def forks_of(objects: ObjectStore, paths: JobPaths) -> dict[str, bool]:
    """Label → whether its fork still needs it, of all pins in the log of a job."""
    found = {}
    for label in CheckpointLog(objects, paths).read("report").labels:
        fork = fork_of(label)
        if fork is not None:
            try:
                home = read_home(objects, fork)
                found[label] = home is not None and home.parent == paths and not home.roots
            except CorruptError:
                found[label] = True  # nobody knows that it needs nothing
    return found


def stale_pins(held: Mapping[str, Labelled], objects: ObjectStore, paths: JobPaths) -> dict[str, Labelled]:
    """The pins of a job whose forks need nothing of it: they were deleted or detached, or never made.

    `held` are the labels of the job, read before. A fork makes its home before its pin, so the home is found now.
    """
    return {
        label: held[label] for label, needed in sorted(forks_of(objects, paths).items()) if not needed and label in held
    }
