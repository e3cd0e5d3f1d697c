"""The identity of a job: the uid that was minted once for its folder, and the folder that it is bound to.

The uid is in the names by which systems fence the job's outputs. A copy of the folder has the same uid: started beside
the original, it would take the original's place. So a uid is bound to the folder where it was minted, by its root and
its name in it.
"""

from __future__ import annotations

import logging
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orjson
from msgspec import Struct

from penstock.base.documents import decode_format, decoding
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

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
    for _ in range(_TRIES):
        found = _read(objects, paths)
        if found is None:
            raise NotFoundError(f"no job was ever started in `{paths.root}`: there is no `{paths.uid}`")
        before, tag = found
        if before.folder == here:
            return before, before
        after = JobIdentity(before.uid if moved else secrets.token_hex(6), here)
        if objects.put_if_match(paths.uid, after.encode(), tag):
            return before, after
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
