"""Signatures of Penstock's own records, in a header of theirs. Pure.

The header is the id of the key and an HMAC over the topic, the record's key, and its value or the fact that it has
none. Nobody without the key can make such a record, or move one to another key or topic. Somebody who may write to the
topic can still repeat an earlier record, or let the brokers' compaction delete one, by a record of the same key.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from enum import Enum
from typing import TypeAlias

from penstock.api.messages.headers import UNREADABLE
from penstock.base.signing import ID_BYTES, MAC_BYTES, RootKeys, RootSigner

HEADER = "penstock.signature"

Headers: TypeAlias = Iterable[tuple[str, str | bytes | None]] | None
SentHeaders: TypeAlias = list[tuple[str, str | bytes | None]]


class Signature(Enum):
    """The result of checking the signature of a record. The value is its description."""

    GENUINE = "it is signed with a key of this job"
    NONE = "it has no signature"
    UNKNOWN = "it is signed with a key that this job does not have"
    WRONG = "its signature is wrong"
    UNREADABLE = "the name of one of its headers is not UTF-8"


class RecordSigner:
    """Signs and verifies with the keys of a root; without any it signs nothing, and knows no signature.

    Example:
        >>> signer = RecordSigner(RootKeys("the key of this root, 32 characters or more"))
        >>> signed = signer.headers("topic", b"key", b"value")
        >>> [signer.signature("topic", b"key", value, signed).name for value in (b"value", None)]
        ['GENUINE', 'WRONG']
    """

    def __init__(self, keys: RootKeys | None = None, *, takes_unsigned: bool = False) -> None:
        """
        Args:
            keys: the first one signs; each of them verifies.
            takes_unsigned: accept records without a signature too, although there is a key."""
        self._signer = RootSigner(keys) if keys is not None and keys.all else None
        self._takes_unsigned = takes_unsigned

    @property
    def has_key(self) -> bool:
        return self._signer is not None

    def headers(self, topic: str, key: bytes, value: bytes | None) -> SentHeaders:
        return [*self.own_headers(topic, key, value)]

    def own_headers(self, topic: str, key: bytes, value: bytes | None) -> tuple[tuple[str, bytes], ...]:
        if self._signer is None:
            return ()
        return ((HEADER, self._signer.current + _mac(self._signer, self._signer.current, topic, key, value)),)

    def signature(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> Signature:
        if headers is UNREADABLE:
            return Signature.UNREADABLE
        found = [each for name, each in headers or () if name == HEADER]
        if not found:
            return Signature.NONE
        signed = found[0]
        if len(found) > 1 or not isinstance(signed, bytes) or len(signed) != ID_BYTES + MAC_BYTES:
            return Signature.WRONG
        named = signed[:ID_BYTES]
        if self._signer is None or named not in self._signer.ids:
            return Signature.UNKNOWN
        expected = _mac(self._signer, named, topic, key or b"", value)
        return Signature.GENUINE if hmac.compare_digest(signed[ID_BYTES:], expected) else Signature.WRONG

    def counts(self, signature: Signature) -> bool:
        if signature is Signature.NONE:
            return self._signer is None or self._takes_unsigned
        return signature is Signature.GENUINE


def _mac(signer: RootSigner, named: bytes, topic: str, key: bytes, value: bytes | None) -> bytes:
    """No object of a root has a key with the byte 0, so its signature is never valid for a record, nor the other way
    round."""
    mac = signer.mac(b"\0kafka\0%s\0%s" % (topic.encode(), key), named)
    mac.update(b"\0" if value is None else b"\1" + value)
    return mac.digest()
