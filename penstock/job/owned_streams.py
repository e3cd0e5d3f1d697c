"""The streams that a job owns, as the job's folder says.

A system's answer to the question whose a stream is decides between jobs that ask for it at the same time. But where the
answer is a record that others may write, as in Kafka, it can be removed or forged later. So a job that got a stream
records that in its folder, before it writes a message, and from then on the folder decides.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from penstock.api.ssp import SystemStream
from penstock.base.documents import VersionedDocument, decode_format
from penstock.base.retry import Retry, retry
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.system.base import SystemAdmin
from penstock.system.contract.messages import partitions_with_messages

logger = logging.getLogger(__name__)

FORMAT = 1
NAMESPACE = "owned-streams"
OUTPUTS = "written-outputs"
_STORED = Retry(pause_s=0.02, longest_pause_s=1.0, within_s=20.0)
_OWNER = re.compile(r"job \S+ \(uid (\S+)\), (?:store .+|intermediate stream)", re.DOTALL)


class _Record(VersionedDocument):
    owner: str


@dataclass(frozen=True, slots=True)
class OwnedStreams:
    """The records of a job's folder, one for each stream that it owns; one that is created again has none."""

    objects: ObjectStore
    paths: JobPaths

    def owner(self, stream: SystemStream, admin: SystemAdmin) -> str | None:
        """Whose a stream is: by the folder, or else by the system; None: nobody's.

        Raises:
            NotFoundError: there is no such stream.
        """
        return self._recorded(self._key(stream, admin)) or admin.owner(stream.stream)

    def own(
        self,
        stream: SystemStream,
        admin: SystemAdmin,
        mine: str,
        check_new: Callable[[], object],
        *,
        keeps_owners: bool = True,
    ) -> str:
        """Become the owner of a stream, unless it has another one. Nothing may be written to it before.

        A process that dies between the system's record and the folder's has written nothing: its next start finds the
        system's record, and goes on from there.

        Args:
            mine: the owner's text.
            check_new: called before a stream is taken that is nobody's. What it raises, this raises.
            keeps_owners: whether the system records owners.

        Returns:
            the owner: `mine`, or another one.
        """
        key = self._key(stream, admin)
        recorded = self._recorded(key)
        if recorded not in (None, mine):
            return str(recorded)
        found = admin.owner(stream.stream) if keeps_owners else None
        if found is None:
            if recorded is None:
                check_new()
            found = admin.own(stream.stream, mine) if keeps_owners else mine
        if recorded is not None and found != mine:
            logger.warning(
                "the system `%s` says that the stream `%s` belongs to another owner: %s. The folder of this job says "
                "that it is this job's, and that decides: somebody has forged or removed the record of the system. "
                "Penstock alone should have the right to write it (docs/kafka.md, access rights)",
                stream.system,
                stream,
                found,
            )
        elif recorded is None and found == mine and key is not None:
            self._record(key, mine)
        return found if recorded is None else mine

    def keeps_from(self, output: SystemStream, admin: SystemAdmin) -> str | None:
        """The owner whose stream the output is, so that the job must not write to it; None if it may.

        A stream that had messages and no owner at an earlier start stays an output. Nobody can have got it since: no
        job takes a stream that has messages of others.
        """
        owner = admin.owner(output.stream)
        key = self._key(output, admin, OUTPUTS)
        if key is None:
            return owner
        is_noted = self._is_there(key)
        if owner is None:
            if not is_noted and partitions_with_messages(admin.offsets(output.stream)):
                retry(lambda: self.objects.put_if_absent(key, orjson.dumps({"format": FORMAT})), _STORED)
        elif is_noted:
            logger.warning(
                "the system `%s` says that the output `%s` belongs to an owner: %s. The folder of this job says that "
                "it had messages before, and no owner, and that decides: somebody has forged the record of the system",
                output.system,
                output,
                owner,
            )
            return None
        return owner

    def _key(self, stream: SystemStream, admin: SystemAdmin, namespace: str = NAMESPACE) -> str | None:
        identity = admin.stream_identity(stream.stream)
        return None if identity is None else self.paths.metadata(namespace, f"{stream} {identity}")

    def _is_there(self, key: str) -> bool:
        try:
            retry(lambda: self.objects.get(key), _STORED)
        except NotFoundError:
            return False
        return True

    def _recorded(self, key: str | None) -> str | None:
        if key is None:
            return None
        try:
            data = retry(lambda: self.objects.get(key), _STORED)
        except NotFoundError:
            return None
        name = f"`{key}` was written by another version of Penstock: it"
        return decode_format(_Record, data, f"`{key}` is damaged", name, FORMAT).owner

    def _record(self, key: str, mine: str) -> None:
        data = orjson.dumps({"format": FORMAT, "owner": mine})
        retry(lambda: self.objects.put_if_absent(key, data), _STORED)


def owner_text(job: str, uid: str, store: str) -> str:
    """The text by which a changelog names its owner: a store of a job. The uid tells the job from jobs of the same name
    in other roots.

    Example:
        >>> owner_text("counts-1", "0123456789ab", "words")
        'job counts-1 (uid 0123456789ab), store words'
    """
    return f"{_job(job, uid)}, store {store}"


def owner_of_intermediates(job: str, uid: str) -> str:
    """The text by which an intermediate stream names its owner, the job."""
    return f"{_job(job, uid)}, intermediate stream"


def is_owned_by(owner: str, job: str, uid: str) -> bool:
    """True if an owner's text is of this job, or of one of its stores."""
    return owner.startswith(_job(job, uid))


def owner_uid(owner: str) -> str | None:
    """The uid in an owner's text; None if it is no text of a job."""
    match = _OWNER.fullmatch(owner)
    return match[1] if match else None


def _job(job: str, uid: str) -> str:
    return f"job {job} (uid {uid})"
