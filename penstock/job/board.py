"""Boards: objects in a job's folder, each of which holds the newest document of one kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import orjson

from penstock.base.documents import decode_format
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

FORMAT = 1


class RunDocument(Protocol):
    """A document about one run."""

    @property
    def run_id(self) -> str: ...


D = TypeVar("D")
T = TypeVar("T")
R = TypeVar("R", bound=RunDocument)


class Board(Generic[T]):
    """Reads, replaces and removes one document: a dataclass whose fields are the object's fields.

    Example:
        >>> from dataclasses import dataclass
        >>> from penstock.objects.open import open_store
        >>> @dataclass
        ... class Color:
        ...     name: str
        >>> board = Board(open_store("memory://board"), "flights-1/color", Color, "does not hold a color")
        >>> board.get(), board.put(Color("red")), board.get()
        (None, True, Color(name='red'))
    """

    def __init__(self, objects: ObjectStore, key: str, form: type[T], damage: str) -> None:
        """
        Args:
            objects: the object store of the job root.
            key: the key of the object.
            form: the class of the document.
            damage: the sentence about a damaged object, without its subject, which is the key.
        """
        self.key = key
        self.damage = f"`{key}` {damage}"
        self._objects = objects
        self._form = form

    def get(self) -> T | None:
        """The document; None if there is none.

        Raises:
            CorruptError: it is damaged; names the key.
            IncompatibleError: a newer Penstock wrote it.
            RetryableError: the object store failed.
        """
        try:
            return self.decode(self._objects.get(self.key))
        except NotFoundError:
            return None

    def get_of(self: Board[R], run_id: str) -> R | None:
        """As `get`, but a document of another run is too old: None."""
        found = self.get()
        return found if found is not None and found.run_id == run_id else None

    def put(self, document: T, *, unless: Callable[[T], bool] | None = None) -> bool:
        """Replace the document, durably. Raises RetryableError.

        Args:
            document: the new one.
            unless: True for a present document that must stay. Then nothing is written, and damage raises as in `get`.

        Returns:
            False if another process replaced the document at the same time: then its document is there.
        """
        data, tag = self.encode(document), None
        try:
            found, tag = self._objects.get_with_tag(self.key)
            if found == data or (unless is not None and unless(self.decode(found))):
                return True
        except NotFoundError:
            pass
        # A lost reply looks like a conflict.
        return self._objects.put_if_match(self.key, data, tag) or self._holds(data)

    def remove(self) -> None:
        """Remove the document, durably. Idempotent. Raises RetryableError."""
        self._objects.delete_durably(self.key)

    def encode(self, document: T) -> bytes:
        """The bytes of the object."""
        return orjson.dumps({"format": FORMAT, **msgspec.to_builtins(document)})

    def decode(self, data: bytes) -> T:
        """Read the bytes of the object. Raises CorruptError and IncompatibleError as `get`."""
        return self._convert(self._form, data)

    def _convert(self, form: type[D], data: bytes) -> D:
        return decode_format(form, data, self.damage, f"`{self.key}`", FORMAT)

    def _holds(self, data: bytes) -> bool:
        try:
            return self._objects.get(self.key) == data
        except NotFoundError:
            return False


@dataclass(frozen=True, slots=True)
class Shown:
    """A document that a run replaces on its board whenever it has changed."""

    about: str
    """Follows "the metrics were not written" in a warning: "about the standbys"."""
    board: Board[Any]
    document: Callable[[], Any]
    """The present document; None leaves what is there. Called by a separate thread."""
    before: Any = None
    """A document that need not be written first."""


def last_run(paths: JobPaths, namespace: str) -> str:
    """The key of a board about a job's last run."""
    return paths.metadata(namespace, "last-run")
