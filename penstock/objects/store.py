"""Object stores, which hold a job's checkpoints, metadata and state."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress

from penstock.errors import ConfigError, NotFoundError

RESERVED_PREFIX = ".penstock-"
"""No segment of a key begins with this: stores keep their own files under such names."""

_MAX_SEGMENT_BYTES = 240
_REFUSED = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


class ObjectStore(ABC):
    """Stores whole objects under keys, with the two conditional writes on which all decisions of a job depend.

    A key is a relative string of non-empty segments separated by `/`. A key is never the folder of another key. Keys
    compare by their characters. All methods may be called by several threads at once.

    Any method raises RetryableError for a failure that may pass (network, full disk), and ConfigError for one that
    needs a person (credentials, permissions, a malformed key). After a RetryableError from a write, it is not known
    whether the write has happened, or still will. Read the key before you draw a conclusion.

    Example:
        >>> from penstock.objects.open import open_store
        >>> store = open_store("memory://example")
        >>> store.put_if_absent("flights/first", b"1"), store.put_if_absent("flights/first", b"2")
        (True, False)
        >>> data, tag = store.get_with_tag("flights/first")
        >>> store.put_if_match("flights/first", b"2", tag), store.put_if_match("flights/first", b"3", tag)
        (True, False)
        >>> store.list("flights"), store.get("flights/first")
        (['flights/first'], b'2')
    """

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object, unless the key has one.

        Atomic: exactly one of several concurrent callers gets True, and no partial object is ever visible.
        Durable: once this has returned, True or False, the object under the key survives a loss of power.
        False may also mean that this call wrote the object, lost the reply and tried again. A caller to whom that
        matters puts a token into the data, and reads it back.

        Args:
            key: the key.
            data: the whole object.

        Returns:
            True if the object was created; False if the key had an object.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Read the whole object.

        Args:
            key: the key.

        Raises:
            NotFoundError: the key has no object.
        """

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        """Read the whole object in pieces, in order. A piece is valid until the next one is read.

        This method yields one piece. A store that can read smaller pieces overrides it.

        Args:
            key: the key.

        Raises:
            NotFoundError: the key has no object. Raised at the first piece or later.
        """
        yield self.get(key)

    @abstractmethod
    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        """Read the whole object, and the tag of this version for `put_if_match`.

        Args:
            key: the key.

        Raises:
            NotFoundError: the key has no object.
        """

    @abstractmethod
    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        """Replace the object if its version is still that of the tag. Atomic and durable, as `put_if_absent`.

        Tags may be hashes of the content. Data that must not be mistaken for an older version therefore needs a counter
        or a token.

        Args:
            key: the key.
            data: the whole new object.
            tag: the tag of the version to replace; None to create the object.

        Returns:
            True if the object was replaced; False if it has another version or does not exist. False may also mean
            that this call wrote the object, lost the reply and tried again.
        """

    def folders(self) -> list[str]:
        """The names of the topmost folders, ascending. This method lists all keys; a store with a faster way overrides
        it."""
        return sorted({key.partition("/")[0] for key in self.list("") if "/" in key})

    @abstractmethod
    def list(self, prefix: str, after: str | None = None) -> list[str]:
        """The keys below a folder, ascending. The list is complete, whatever the store's page size.

        Args:
            prefix: the folder, in whole segments: `a/b` finds `a/b/c`, neither `a/bc` nor `a/b`. A folder that does
                not exist is empty. The empty prefix finds all keys.
            after: list only keys greater than this one.
        """

    def sizes(self, prefix: str) -> dict[str, int]:
        """The sizes of the objects below a folder in bytes, ascending by key. Objects deleted meanwhile may be missing.

        This method reads the objects; a store with a faster way overrides it.

        Args:
            prefix: the folder, as in `list`.
        """
        found: dict[str, int] = {}
        for key in self.list(prefix):
            with suppress(NotFoundError):
                found[key] = len(self.get(key))
        return found

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete the object. Nothing happens if there is none. A loss of power may bring the object back.

        Args:
            key: the key.
        """

    def delete_durably(self, key: str) -> None:
        """Delete the object durably: a loss of power does not bring it back.

        A store whose deletes are not durable overrides it.

        Args:
            key: the key.
        """
        self.delete(key)

    def modes_of_others(self, prefix: str) -> str | None:
        """The mode of a folder, in octal digits, if other users of the machine can read it or write to it.

        A store whose folders have modes overrides it.

        Args:
            prefix: the folder.
        """
        check_key(prefix)
        return None

    def remove_empty_folders(self, prefix: str) -> None:
        """Remove empty folders below a folder, and the folder itself if it is empty. Objects written meanwhile stay.

        A store whose folders exist apart from its objects overrides it.

        Args:
            prefix: the folder.
        """
        check_key(prefix)

    @abstractmethod
    def close(self) -> None:
        """Close the store. Idempotent; no other call follows."""


def check_key(key: str) -> str:
    """Check a key and return it.

    Args:
        key: the key.

    Raises:
        ConfigError: the key is absolute, has an empty, `.`, `..`, reserved or too long segment, or a control character.

    Example:
        >>> check_key("flights-1/metadata/lease")
        'flights-1/metadata/lease'
    """
    for segment in key.split("/"):
        if not segment or segment in {".", ".."}:
            raise ConfigError(f"object key `{key}` has an empty, `.` or `..` segment")
        if segment.startswith(RESERVED_PREFIX):
            raise ConfigError(f"object key `{key}`: names that begin with `{RESERVED_PREFIX}` are the store's own")
        if len(segment.encode("utf-8", "surrogatepass")) > _MAX_SEGMENT_BYTES:
            raise ConfigError(f"object key `{key}`: `{segment}` is longer than {_MAX_SEGMENT_BYTES} bytes")
    if _REFUSED.search(key):
        raise ConfigError(f"object key {key!r} holds a control character, a backslash or a lone surrogate")
    return key


def check_prefix(prefix: str) -> str:
    """Check the prefix of a listing and return it without its trailing slash.

    Args:
        prefix: the folder; empty for all keys.

    Raises:
        ConfigError: as `check_key`.

    Example:
        >>> check_prefix("flights-1/")
        'flights-1'
    """
    trimmed = prefix.removesuffix("/")
    return check_key(trimmed) if trimmed else ""
