"""The names of the blob backend's objects, all in the folder `blob` of a task's store.

<epoch>-<checkpoint id>-<sha256>    content; see `content/names.py`
<epoch>-<checkpoint id>.index       the index of the commit
"""

from __future__ import annotations

import re

from penstock.checkpoint.id import CheckpointId
from penstock.job.paths import JobPaths
from penstock.state.backends.content import names as content
from penstock.state.backends.content.names import NUMBER, ContentNames

FOLDER = "blob"
_INDEX = ".index"
_NAME = re.compile(rf"({NUMBER})-{NUMBER}-{NUMBER}\.index")


def blob_names(paths: JobPaths, store: str, task: int) -> ContentNames:
    return ContentNames(paths, store, task, FOLDER)


def index_name(epoch: int, checkpoint_id: CheckpointId) -> str:
    return f"{epoch}-{checkpoint_id}{_INDEX}"


def is_index(name: str) -> bool:
    return name.endswith(_INDEX)


def index_epoch(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def epoch_of(key: str) -> int | None:
    place, _, name = key.rpartition("/")
    return index_epoch(name) if is_index(name) and place.endswith(f"/{FOLDER}") else content.epoch_of(key, FOLDER)
