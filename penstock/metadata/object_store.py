"""Object stores: where a job's checkpoints, metadata and state live (DESIGN section 3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress

from penstock.errors import ConfigError, NotFoundError

RESERVED_PREFIX = ".penstock-"
"""No segment of a key begins with this: stores keep their own files under such names."""

_MAX_SEGMENT_BYTES = 240


class ObjectStore(ABC):
    """Whole objects under keys, with the two conditional writes every decision of a job rests on.

    A key is a relative string of non-empty segments separated by `/`; a key is never also the folder of another
    one. Keys compare by their characters. All methods may be called from several threads at once.

    Any method raises RetryableError for a failure that may pass (network, full disk) and ConfigError for one that
    needs a person (credentials, permissions, a malformed key). After a RetryableError from a write nothing is known:
    it may have happened, may not have, or may still happen. Read the key before drawing a conclusion.
    """

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; False if the key was already taken, by any writer.

        Atomic: of any number of concurrent callers exactly one gets True, and no partial object is ever visible.
        Durable: the object under the key survives a loss of power once this returned, True or False.
        False may also mean that the reply to this very call's own write was lost and the write was tried again:
        a caller to whom that matters puts a token into the data and reads it back.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The whole object. Raises NotFoundError if there is none."""

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        """The whole object, piece by piece in order; a piece is valid until the next one is asked for. Here it is a
        single piece; a store that has smaller ones at hand overrides it. Raises as `get`, at the first piece or later.
        """
        yield self.get(key)

    @abstractmethod
    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        """The whole object and the tag of this version of it, for `put_if_match`. Raises NotFoundError."""

    @abstractmethod
    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        """Replace the object if its tag still is `tag`; with None, create it as `put_if_absent` does.

        Atomic and durable; False if the object has another tag or is gone, which may be this very call's own doing, as
        with `put_if_absent`. Tags may be hashes of the content, so data that must not be mistaken for an older version
        carries a counter or a token.
        """

    def folders(self) -> list[str]:
        """The names of the topmost folders, ascending. Here everything is listed; stores that know better override
        it."""
        return sorted({key.partition("/")[0] for key in self.list("") if "/" in key})

    @abstractmethod
    def list(self, prefix: str, after: str | None = None) -> list[str]:
        """The keys below the folder `prefix` (empty: all), ascending; with `after`, only those greater than it.

        The answer is whole, whatever the store's page size. `prefix` names whole segments: `a/b` finds `a/b/c`,
        neither `a/bc` nor `a/b`. A folder that does not exist is empty.
        """

    def sizes(self, prefix: str) -> dict[str, int]:
        """The size in bytes of each object below the folder `prefix`, ascending by key; see `list`. Here each is read
        whole; stores that know better override it. What is deleted meanwhile may be left out."""
        found: dict[str, int] = {}
        for key in self.list(prefix):
            with suppress(NotFoundError):
                found[key] = len(self.get(key))
        return found

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; no error if there is none. Until the next loss of power at least it stays removed."""

    def delete_durably(self, key: str) -> None:
        """As `delete`, and the object stays removed after a loss of power too. A store whose deletes are not durable
        overrides it."""
        self.delete(key)

    def remove_empty_folders(self, prefix: str) -> None:
        """Remove what deletes below the folder `prefix` left that is no object, and the folder itself if nothing is in
        it. Objects written meanwhile stay. A store that has folders apart from its objects overrides it."""
        check_key(prefix)

    @abstractmethod
    def close(self) -> None:
        """Release what is open. Idempotent; no other call follows."""


def check_key(key: str) -> str:
    """The key itself.

    Raises:
        ConfigError: it is absolute, has an empty, `.`, `..`, reserved or too long segment, or a control character.
    """
    for segment in key.split("/"):
        if not segment or segment in {".", ".."}:
            raise ConfigError(f"object key `{key}` has an empty, `.` or `..` segment")
        if segment.startswith(RESERVED_PREFIX):
            raise ConfigError(f"object key `{key}`: names that begin with `{RESERVED_PREFIX}` are the store's own")
        if len(segment.encode("utf-8", "surrogatepass")) > _MAX_SEGMENT_BYTES:
            raise ConfigError(f"object key `{key}`: `{segment}` is longer than {_MAX_SEGMENT_BYTES} bytes")
    if any(ord(char) < 0x20 or char in "\x7f\\" or "\ud800" <= char <= "\udfff" for char in key):
        raise ConfigError(f"object key {key!r} holds a control character, a backslash or a lone surrogate")
    return key


def check_prefix(prefix: str) -> str:
    """The prefix of a listing without its trailing slash; empty for everything. Raises ConfigError as `check_key`."""
    trimmed = prefix.removesuffix("/")
    return check_key(trimmed) if trimmed else ""
