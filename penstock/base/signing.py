"""Signatures with the keys of a root. A signature proves that its writer has the key, and wrote for this place."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

ID_BYTES = 8
MAC_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class RootKeys:
    """The keys with which the objects of a root are signed, and Penstock's records in Kafka; without any, nothing is.

    Example:
        >>> RootKeys(), RootKeys("the key of this root, 32 characters or more").all
        (RootKeys(), ('the key of this root, 32 characters or more',))
    """

    current: str | None = field(default=None, repr=False)
    """Signs and verifies."""
    previous: str | None = field(default=None, repr=False)
    """Verifies older signatures."""

    @property
    def all(self) -> tuple[str, ...]:
        """The keys that verify; the first one signs."""
        return tuple(key for key in (self.current, self.previous) if key is not None)


class RootSigner:
    """The keys of a root, by their ids. An id names its key, and says nothing about it.

    Example:
        >>> signer = RootSigner(RootKeys("the key of this root, 32 characters or more"))
        >>> len(signer.current), signer.mac(b"here", signer.current).digest_size
        (8, 32)
    """

    def __init__(self, keys: RootKeys) -> None:
        """`keys`: the first one signs; each of them verifies. There is at least one."""
        self._keys = {_id_of(key): key.encode() for key in reversed(keys.all)}
        self.current = _id_of(keys.all[0])

    @property
    def ids(self) -> tuple[bytes, ...]:
        return tuple(reversed(self._keys))

    def mac(self, place: bytes, named: bytes) -> hmac.HMAC:
        """The HMAC with SHA-256 by the key of the id `named`, to be updated with the content of the place."""
        return hmac.new(self._keys[named], len(place).to_bytes(4, "big") + place, hashlib.sha256)


def _id_of(key: str) -> bytes:
    return hmac.new(key.encode(), b"the name of this key", hashlib.sha256).digest()[:ID_BYTES]
