"""Objects that only show something to commands: the newest one counts."""

from __future__ import annotations

from penstock.errors import NotFoundError
from penstock.objects.store import ObjectStore


def show(objects: ObjectStore, key: str, data: bytes) -> None:
    """Replace what is shown under a key. If another process does so at the same time, one of both is shown.

    Raises:
        RetryableError: the object store failed.
    """
    try:
        _, tag = objects.get_with_tag(key)
    except NotFoundError:
        tag = None
    objects.put_if_match(key, data, tag)
