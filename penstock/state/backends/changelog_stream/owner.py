"""The text by which a stream names its owner: a store of a job, or a job with an intermediate stream."""

from __future__ import annotations

import re

_OWNER = re.compile(r"job \S+ \(uid (\S+)\), (?:store .+|intermediate stream)", re.DOTALL)


def owner_text(job: str, uid: str, store: str) -> str:
    """The text for a store. The uid tells the job from jobs of the same name in other roots.

    Example:
        >>> owner_text("counts-1", "0123456789ab", "words")
        'job counts-1 (uid 0123456789ab), store words'
    """
    return f"{_job(job, uid)}, store {store}"


def owner_of_intermediates(job: str, uid: str) -> str:
    return f"{_job(job, uid)}, intermediate stream"


def is_owned_by(owner: str, job: str, uid: str) -> bool:
    return owner.startswith(_job(job, uid))


def owner_uid(owner: str) -> str | None:
    match = _OWNER.fullmatch(owner)
    return match[1] if match else None


def _job(job: str, uid: str) -> str:
    return f"job {job} (uid {uid})"
