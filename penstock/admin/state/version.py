"""The name of one version of a job's state: a checkpoint's id, the number of its batch, `latest`, `latest-2`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.admin.jobs import FoundJob
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import ConfigError, NotFoundError

FORMS = "a checkpoint's ID, the number of its batch, `latest`, or `latest-N`, the N-th before the latest"

_ID = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
_BATCH = re.compile(r"[0-9]{1,18}")
_LATEST = re.compile(r"latest(?:-([0-9]{1,9}))?")
_SHOWN = 20


def choose_version(found: FoundJob, version: str) -> CheckpointRecord:
    """The retained checkpoint of a version. Raises as `choose_versions`."""
    return choose_versions(found, [version])[0]


def choose_versions(found: FoundJob, versions: Sequence[str]) -> list[CheckpointRecord]:
    """The retained checkpoint of each version, as of one moment.

    Which checkpoint is the latest, or the last of a batch, is unknown where the log is damaged; one that is named
    by its id can be read all the same.

    Raises:
        ConfigError: one of them names no version.
        NotFoundError: no checkpoint of that name is retained; says which are.
        CorruptError: the log is damaged, and not all versions are ids.
    """
    named = all(_ID.fullmatch(version) for version in versions)
    retained = found.log.read("report" if named else "raise").restorable
    if not retained:
        raise NotFoundError(f"job `{found.paths.root}` has no checkpoint yet")
    return [find_version(retained, version) for version in versions]


def find_version(retained: Sequence[CheckpointRecord], version: str) -> CheckpointRecord:
    """The one of these checkpoints, oldest first, that a version names. Of several of one batch it is the newest: a
    run's first checkpoint has the batch that it went on from, and one that went back makes its batches again.

    Raises:
        ConfigError: this names no version.
        NotFoundError: it is none of them; says which there are.
    """
    if match := _LATEST.fullmatch(version):
        matching = retained[: len(retained) - int(match[1] or 0)]
    elif _BATCH.fullmatch(version):
        matching = [record for record in retained if record.batch == int(version)]
    elif _ID.fullmatch(version):
        matching = [record for record in retained if str(record.id) == version]
    else:
        raise ConfigError(f"`{version}` is not a version: expected {FORMS}")
    if not matching:
        raise NotFoundError(f"version `{version}` is not retained. Retained: {_listed(retained)}")
    return matching[-1]


def version_text(record: CheckpointRecord) -> str:
    return f"{record.id} (batch {record.batch})"


def _listed(retained: Sequence[CheckpointRecord]) -> str:
    newest = ", ".join(version_text(record) for record in reversed(retained[-_SHOWN:]))
    more = len(retained) - _SHOWN
    return f"{newest}, and {more} older ones that `penstock state list` shows" if more > 0 else newest
