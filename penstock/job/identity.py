"""The identity of a job, and the streams that it owns, as the job's folder says.

The uid was minted once for the folder. It is in the names by which systems fence the job's outputs. A copy of the
folder has the same uid: started beside the original, it would take the original's place. So a uid is bound to the
folder where it was minted, by its root and its name in it.

A system's answer to the question whose a stream is decides between jobs that ask for it at the same time. But where
the answer is a record that others may write, as in Kafka, it can be removed or forged later. So a job that got a
stream records that in its folder, before it writes a message, and from then on the folder decides.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStream
from penstock.base.documents import VersionedDocument, decode_format, decoding
from penstock.base.retry import Retry, retry
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.system.base import SystemAdmin
from penstock.system.contract.messages import partitions_with_messages

logger = logging.getLogger(__name__)

FORMAT = 1
_TRIES = 10
_UID = re.compile(r"[0-9A-Za-z_-]{1,64}")


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """A job's uid, and the canonical URL of the folder that it is bound to. Without one, the next start binds it."""

    uid: str
    folder: str | None = None

    def encode(self) -> bytes:
        return orjson.dumps({"format": FORMAT, "uid": self.uid, "folder": self.folder})

    @classmethod
    def decode(cls, data: bytes, key: str) -> JobIdentity:
        """Read it. Raises CorruptError, or IncompatibleError for a newer format; both name the key."""
        what = f"`{key}` is damaged, it is not the identity of a job"
        with decoding(what):
            name = f"`{key}` was written by another version of Penstock: it"
            written = decode_format(_IdentityDocument, data, what, name, FORMAT)
            return cls(_checked(written.uid), written.folder)


class _IdentityDocument(Struct):
    """The fields of an identity."""

    uid: str
    folder: str | None


def canonical_root(url: str) -> str:
    """One form for all spellings of a root: the URL of a folder's real path, another URL without trailing slashes.

    Example:
        >>> canonical_root("s3://bucket/jobs/")
        's3://bucket/jobs'
    """
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme not in {"", "file"}:
        return url.rstrip("/")
    return _path_of(url).as_uri()


def _path_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path) if "://" in url else url).expanduser().resolve()


def canonical_folder(url: str, paths: JobPaths) -> str:
    """The job's folder in the root `url`, as `canonical_root`."""
    return f"{canonical_root(url)}/{paths.root}"


def check_root(objects: ObjectStore, paths: JobPaths, url: str) -> None:
    """Raise IncompatibleError, with instructions, if the job's folder is a copy of the one it is bound to. A folder
    that is not bound yet may be anywhere. Warns if other users of the machine can read the folder."""
    if (mode := objects.modes_of_others(paths.root)) is not None:
        folder = _path_of(url) / paths.root
        logger.warning(
            "the folder %s has the mode %s: other users of the machine can read the job's state, or change it. "
            "Penstock makes such folders for their user alone; for this one: chmod -R go= %s",
            folder,
            mode,
            folder,
        )
    found = _read(objects, paths)
    if found is not None:
        _refuse_copy(found[0], paths, url)


def settle(objects: ObjectStore, paths: JobPaths, url: str) -> str:
    """The job's uid, minted by the first caller and bound to its folder in the root `url`. Raises IncompatibleError if
    it is bound to another folder."""
    here = canonical_folder(url, paths)
    for _ in range(_TRIES):
        found = _read(objects, paths)
        if found is None:
            objects.put_if_absent(paths.uid, JobIdentity(secrets.token_hex(6), here).encode())
            continue
        identity, tag = found
        _refuse_copy(identity, paths, url)
        if identity.folder == here:
            return identity.uid
        objects.put_if_match(paths.uid, JobIdentity(identity.uid, here).encode(), tag)
    raise RetryableError(
        f"another process keeps changing `{paths.uid}`. Make sure that only one process starts this job, and try again"
    )


def known_uid(objects: ObjectStore, paths: JobPaths) -> str:
    """The job's uid, whatever folder it is bound to; empty if none was minted yet."""
    found = _read(objects, paths)
    return "" if found is None else found[0].uid


def uid_here(objects: ObjectStore, paths: JobPaths, url: str) -> str:
    """The uid of the job in the root `url`, by which its folders on hosts are named. It is empty if none was minted
    yet, if it cannot be read, and if the folder is a copy of another job's, which was not adopted."""
    try:
        found = _read(objects, paths)
    except (CorruptError, IncompatibleError):
        return ""
    is_own = found is not None and found[0].folder in {None, canonical_folder(url, paths)}
    return found[0].uid if found is not None and is_own else ""


def adopt(objects: ObjectStore, paths: JobPaths, url: str, *, moved: bool) -> tuple[JobIdentity, JobIdentity]:
    """Bind the job to its present folder, and return the identity before and after. Hold the lease meanwhile.

    A folder that was `moved` stays the same job. A copy becomes a job with a new uid: nothing it does fences the
    original.

    Raises:
        NotFoundError: no job was ever started in the folder.
    """
    here = canonical_folder(url, paths)
    tried: tuple[JobIdentity, JobIdentity] | None = None
    for _ in range(_TRIES):
        found = _read(objects, paths)
        if found is None:
            raise NotFoundError(f"no job was ever started in `{paths.root}`: there is no `{paths.uid}`")
        before, tag = found
        if tried is not None and before == tried[1]:
            return tried  # whatever the reply to its write was
        if before.folder == here:
            return before, before
        tried = before, JobIdentity(before.uid if moved else secrets.token_hex(6), here)
        objects.put_if_match(paths.uid, tried[1].encode(), tag)
    raise RetryableError(
        f"another process keeps changing `{paths.uid}`. Make sure that only one process starts this job, and try again"
    )


def settle_companion(objects: ObjectStore, paths: JobPaths, uid: str, key: str) -> None:
    """Bind the job's folder in a root other than `job.root` to the job. The first caller does it.

    Args:
        key: the configuration that names the root, as `key=value`, for the error.

    Raises:
        IncompatibleError: it is bound to another job.
    """
    objects.put_if_absent(paths.uid, JobIdentity(uid).encode())
    check_companion(objects, paths, uid, key)


def check_companion(objects: ObjectStore, paths: JobPaths, uid: str, key: str) -> None:
    """Raise IncompatibleError if the folder is bound to another job. Writes nothing; see `settle_companion`."""
    found = _read(objects, paths)
    if found is not None and found[0].uid != uid:
        raise IncompatibleError(
            f"the folder `{paths.root}` in {key} holds the state of another job, with the uid {found[0].uid}; this one "
            f"has {uid}. Give this job another root there. If the folder is a copy that nobody else uses, delete "
            f"`{paths.uid}` in it, and it becomes this job's"
        )


def _checked(uid: str) -> str:
    """Check a uid, which becomes a part of the names of streams and folders. Raises ValueError."""
    if not _UID.fullmatch(uid):
        raise ValueError(f"{uid[:100]!r} is not a uid")
    return uid


def _read(objects: ObjectStore, paths: JobPaths) -> tuple[JobIdentity, str] | None:
    try:
        data, tag = objects.get_with_tag(paths.uid)
    except NotFoundError:
        return None
    return JobIdentity.decode(data, paths.uid), tag


def _refuse_copy(identity: JobIdentity, paths: JobPaths, url: str) -> None:
    here = canonical_folder(url, paths)
    if identity.folder in {None, here}:
        return
    command = f"penstock job adopt {paths.root} -c job.root={url}"
    raise IncompatibleError(
        f"the folder {here} is a copy: the job in it belongs to {identity.folder}. Started here, it would take over "
        "the outputs of the job there and end its run. If nobody uses the folder there any more, because it was moved "
        f"or this is its backup, `{command} --moved` keeps it the same job. Otherwise `{command}` makes the copy a "
        "separate job"
    )


def writer_name(paths: JobPaths, uid: str) -> str:
    """The name under which a job writes its outputs, unless it has published under another one before. It ends with the
    uid, which a folder keeps when it is moved."""
    return f"{paths.root}-{uid}"


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
        """The uid of the job that owns a stream, as the folder says, or else the system; None: nobody owns it.

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
