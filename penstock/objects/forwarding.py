"""Object stores that pass every call to another one.

`ForwardingStore` is the base of stores that count, fail, wait or watch. `MeteredObjectStore` counts the bytes that
pass through it. Objects of a `SignedStore` are signed with the key of the root.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator

from penstock.base.secrets import ID_BYTES, MAC_BYTES, RootKeys, RootSigner
from penstock.errors import ConfigError, CorruptError
from penstock.metrics.registry import MetricsRegistry
from penstock.objects.store import ObjectStore


class ForwardingStore(ObjectStore):
    """Passes every call to another store. A subclass overrides the calls that it changes.

    `get`, `get_with_tag` and `pieces` read; `list`, `folders` and `sizes` list. Overriding one of them does not change
    the others.

    Example:
        >>> from penstock.objects.open import open_store
        >>> from penstock.testing.faulty_store import ForwardingStore
        >>> class Reads(ForwardingStore):
        ...     count = 0
        ...
        ...     def get(self, key):
        ...         self.count += 1
        ...         return super().get(key)
        >>> store = Reads(open_store("memory://reads"))
        >>> store.put_if_absent("key", b"data"), store.get("key"), store.count
        (True, b'data', 1)
    """

    def __init__(self, inner: ObjectStore) -> None:
        """Wrap a store.

        Args:
            inner: the store that does the work. `close` closes it too.
        """
        self._inner = inner

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._inner.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        return self._inner.put_if_match(key, data, tag)

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        return self._inner.pieces(key)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        return self._inner.get_with_tag(key)

    def folders(self) -> list[str]:
        return self._inner.folders()

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        return self._inner.list(prefix, after)

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._inner.sizes(prefix)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def delete_durably(self, key: str) -> None:
        self._inner.delete_durably(key)

    def modes_of_others(self, prefix: str) -> str | None:
        return self._inner.modes_of_others(prefix)

    def remove_empty_folders(self, prefix: str) -> None:
        self._inner.remove_empty_folders(prefix)

    def close(self) -> None:
        self._inner.close()


class MeteredObjectStore(ForwardingStore):
    """Another object store that counts the bytes of whole objects written and read."""

    def __init__(self, inner: ObjectStore, metrics: MetricsRegistry, group: str) -> None:
        """Counts `bytes-uploaded` and `bytes-downloaded` of the group. An object that existed already counts as
        written, because its bytes were sent."""
        super().__init__(inner)
        self._written = metrics.new_counter(group, "bytes-uploaded")
        self._read = metrics.new_counter(group, "bytes-downloaded")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        put = self._inner.put_if_absent(key, data)
        self._written.inc(len(data))
        return put

    def get(self, key: str) -> bytes:
        data = self._inner.get(key)
        self._read.inc(len(data))
        return data

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        for piece in self._inner.pieces(key):
            self._read.inc(len(piece))
            yield piece

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        data, tag = self._inner.get_with_tag(key)
        self._read.inc(len(data))
        return data, tag

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        put = self._inner.put_if_match(key, data, tag)
        self._written.inc(len(data))
        return put

    def close(self) -> None:
        """Does nothing: the inner store belongs to its opener."""


_MAGIC = b"\x89PsSign\x01"
_HEADER_BYTES = len(_MAGIC) + ID_BYTES + MAC_BYTES


class UntrustedError(ConfigError):
    """An object exists, but has another signature than the configuration asks for, or none."""


class SignedStore(ForwardingStore):
    """Signs every object that it writes, and verifies every object that it reads.

    The signature is an HMAC with SHA-256 over the object's key and bytes, in front of the bytes. Without the key of
    the root, nobody can make an object, change one, or move one to another key. A signature does not keep anybody from
    deleting objects, from putting back an older version of one, or from reading.

    Example:
        >>> from penstock.base.secrets import RootKeys
        >>> from penstock.objects.open import open_root, open_store
        >>> store = open_root("memory://signed", RootKeys("the key of this root, 32 characters or more"))
        >>> store.put_if_absent("key", b"data"), store.get("key"), len(open_store("memory://signed").get("key"))
        (True, b'data', 52)
    """

    def __init__(self, inner: ObjectStore, keys: RootKeys, *, takes_unsigned: bool = False) -> None:
        """Wrap a store.

        Args:
            inner: the store that holds the signed objects.
            keys: the first one signs; each of them verifies. There is at least one.
            takes_unsigned: read objects without a signature, too.
        """
        super().__init__(inner)
        self._given = keys
        self._signer = RootSigner(keys)
        self._takes_unsigned = takes_unsigned

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._inner.put_if_absent(key, self._signed(key, data))

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        return self._inner.put_if_match(key, self._signed(key, data), tag)

    def get(self, key: str) -> bytes:
        return self._verified(key, self._inner.get(key))

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        data, tag = self._inner.get_with_tag(key)
        return self._verified(key, data), tag

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        """As in `ObjectStore`, but the signature is verified behind the last piece, so the caller must not use any
        before that."""
        if self._takes_unsigned:
            yield self.get(key)
            return
        header, mac = b"", None
        for piece in self._inner.pieces(key):
            lacking = _HEADER_BYTES - len(header)
            header += bytes(piece[:lacking])
            if mac is None and len(header) == _HEADER_BYTES:
                mac = self._mac_of(key, header)
            if mac is not None and lacking < len(piece):
                mac.update(piece[lacking:])
                yield piece[lacking:]
        self._check(key, header, mac or self._mac_of(key, header))

    def sizes(self, prefix: str) -> dict[str, int]:
        return {key: max(0, size - _HEADER_BYTES) for key, size in self._inner.sizes(prefix).items()}

    def taking_unsigned(self) -> SignedStore:
        return SignedStore(self._inner, self._given, takes_unsigned=True)

    def sign_again(self, key: str) -> bool:
        """Sign an object with the current key, if it is not; True if the object was written. Idempotent.

        Raises:
            NotFoundError: the key has no object.
            CorruptError: the object has a wrong signature.
        """
        written = False
        while True:
            data, tag = self._inner.get_with_tag(key)
            content = self._verified(key, data)
            if data.startswith(_MAGIC + self._signer.current):
                return written
            written = self._inner.put_if_match(key, self._signed(key, content), tag) or written

    def _signed(self, key: str, data: bytes) -> bytes:
        mac = self._signer.mac(key.encode(), self._signer.current)
        mac.update(data)
        return b"".join((_MAGIC, self._signer.current, mac.digest(), data))

    def _verified(self, key: str, data: bytes) -> bytes:
        header = data[:_HEADER_BYTES]
        if self._takes_unsigned and not is_signed(header):
            return data
        mac = self._mac_of(key, header)
        mac.update(memoryview(data)[_HEADER_BYTES:])
        self._check(key, header, mac)
        return data[_HEADER_BYTES:]

    def _mac_of(self, key: str, header: bytes) -> hmac.HMAC:
        """The MAC for the bytes behind the header. Raises UntrustedError if the header names an unknown key."""
        if not is_signed(header):
            raise UntrustedError(
                f"object `{key}` has no signature, but the configuration has a `job.root.key`. If the key is new for "
                "this root, stop its jobs and sign their objects with `penstock job sign`. Otherwise something other "
                "than Penstock with this key has written the object"
            )
        named = header[len(_MAGIC) :][:ID_BYTES]
        if named not in self._signer.ids:
            raise UntrustedError(
                f"object `{key}` is signed with another key than `job.root.key`: the object names {named.hex()}, the "
                f"configuration has {', '.join(known.hex() for known in self._signer.ids)}. While keys change, "
                "give the former one as `job.root.key.previous`"
            )
        return self._signer.mac(key.encode(), named)

    def _check(self, key: str, header: bytes, mac: hmac.HMAC) -> None:
        if not hmac.compare_digest(header[-mac.digest_size :], mac.digest()):
            raise CorruptError(
                f"object `{key}` is not what was signed: it was damaged, changed or moved by something that does not "
                "have `job.root.key`"
            )


class UnsignedStore(ForwardingStore):
    """A root without a key. Its objects are not signed, and signed ones are refused."""

    def get(self, key: str) -> bytes:
        return _unsigned(key, self._inner.get(key))

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        data, tag = self._inner.get_with_tag(key)
        return _unsigned(key, data), tag


def is_signed(data: bytes) -> bool:
    return len(data) >= _HEADER_BYTES and data.startswith(_MAGIC)


def _unsigned(key: str, data: bytes) -> bytes:
    if is_signed(data):
        raise UntrustedError(
            f"object `{key}` is signed, and the configuration has no `job.root.key`. Give the key with which the root "
            "was signed, best as `file:PATH`, `env:NAME` or `cmd:COMMAND`"
        )
    return data
