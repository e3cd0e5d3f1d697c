"""Names of objects that hold files by content, all in one folder of a task's store.

    <epoch>-<checkpoint id>-<sha256>    a file, or a part of one, that this commit was the first to hold

A name is never used for anything else: content that comes back after it was gone gets a new name. So a commit under way
can need an object of a checkpoint that left the log only if the checkpoint before the commit names it, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.checkpoint.id import CheckpointId
from penstock.job.paths import JobPaths

NUMBER = "(?:0|[1-9][0-9]*)"
_NAME = re.compile(rf"({NUMBER})-{NUMBER}-{NUMBER}-([0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True)
class ContentNames:
    """The names in one folder of a task's store."""

    paths: JobPaths
    store: str
    task: int
    folder: str

    def key(self, name: str) -> str:
        return self.paths.state_object(self.store, self.task, f"{self.folder}/{name}")

    def __str__(self) -> str:
        return f"store `{self.store}` of task {self.task}"


def file_name(epoch: int, checkpoint_id: CheckpointId, sha256: str) -> str:
    return f"{epoch}-{checkpoint_id}-{sha256}"


def content_of(name: str) -> str | None:
    match = _NAME.fullmatch(name)
    return match[2] if match else None


def epoch_of(key: str, folder: str) -> int | None:
    place, _, name = key.rpartition("/")
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and place.endswith(f"/{folder}") else None
