"""Packages that the driver gives to Spark's workers and containers: the part of a job that they need, pickled once,
and the identities with which callers prove to containers who they are.

Classes of typed messages are pickled by value if a script defines them. cloudpickle copies the dictionary of such a
class. That is not enough for a `msgspec.Struct`, whose copy would have no fields and lose those of every message
without an error; and a dataclass that msgspec has met has an attribute that cannot be pickled.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MemberDescriptorType
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from pyspark import cloudpickle
from pyspark.cloudpickle.cloudpickle import _should_pickle_by_reference

from penstock.errors import ConfigError
from penstock.host.logs import log_directory
from penstock.start.job import ClaimedJob
from penstock.wire.ports import PackedPackage, WorkerPackage
from penstock.wire.security import TlsIdentity, new_identity

_CloudPickler: Any = cloudpickle.Pickler  # PySpark's copy has no types
_CACHE = "__msgspec_cache__"
_OPTIONS = (
    "frozen", "eq", "order", "array_like", "tag", "tag_field", "forbid_unknown_fields", "omit_defaults", "weakref",
    "dict", "cache_hash", "repr_omit_defaults",
)  # fmt: skip
_MADE_BY_MSGSPEC = {
    "__slots__",
    "__weakref__",
    "__dict__",
    "__match_args__",
    "__annotations__",
    "__doc__",
    "__module__",
}
_ids: WeakKeyDictionary[type, str] = WeakKeyDictionary()
"""By class of this process, its id in pickles."""
_rebuilt: dict[str, type] = {}
"""By id, the class in a process that has unpickled it: several pickles of a class make one class."""


def dumps(package: object) -> bytes:
    """The pickle of a package, with the classes that its functions and serdes use."""
    with io.BytesIO() as file:
        _Pickler(file).dump(package)
        return file.getvalue()


class _Pickler(_CloudPickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and not _should_pickle_by_reference(obj):
            if isinstance(obj, msgspec.StructMeta):
                return _rebuild, _parts(obj)
            if _CACHE in vars(obj):
                delattr(obj, _CACHE)  # msgspec makes it again
        found: Any = super().reducer_override(obj)
        return found


def _parts(struct: Any) -> tuple[Any, ...]:
    own = vars(struct).get("__annotations__", {})
    fields = {
        each.name: (each.encode_name, each.default, each.default_factory)
        for each in msgspec.structs.fields(struct)
        if each.name in own
    }
    others = {
        name: value
        for name, value in vars(struct).items()
        if name not in _MADE_BY_MSGSPEC | own.keys()
        and not name.startswith("__struct")
        and not isinstance(value, MemberDescriptorType)
        and name != _CACHE
    }
    options = {name: getattr(struct.__struct_config__, name) for name in _OPTIONS}
    options["kw_only"] = not set(struct.__match_args__) & own.keys()
    head = (_ids.setdefault(struct, uuid.uuid4().hex), type(struct), struct.__name__, struct.__bases__)
    names = {"__module__": struct.__module__, "__qualname__": struct.__qualname__, "__doc__": struct.__doc__}
    return (*head, dict(own), fields, {**names, **others}, options)


def _rebuild(
    class_id: str,
    meta: Any,
    name: str,
    bases: tuple[type, ...],
    annotations: Mapping[str, Any],
    fields: Mapping[str, tuple[str, Any, Any]],
    others: Mapping[str, Any],
    options: Mapping[str, Any],
) -> type:
    if class_id in _rebuilt:
        return _rebuilt[class_id]
    namespace: dict[str, Any] = {**others, "__annotations__": annotations}
    for attribute, (encoded, default, factory) in fields.items():
        given = {"name": encoded} if encoded != attribute else {}
        if default is not msgspec.NODEFAULT:
            given["default"] = default
        elif factory is not msgspec.NODEFAULT:
            given["default_factory"] = factory
        if given:
            namespace[attribute] = msgspec.field(**given)
    made: type = _rebuilt.setdefault(class_id, meta(name, bases, namespace, **options))
    return made


@dataclass(frozen=True, slots=True)
class Shipment:
    """The content that leaves the driver with every batch."""

    worker_package: PackedPackage
    secret: str = field(repr=False)

    @classmethod
    def of(cls, job: ClaimedJob) -> Shipment:
        """Raises ConfigError if the application cannot be pickled."""
        pages = str(log_directory(job.config, job.paths, job.uid))
        data = pickled(WorkerPackage(job.topology, job.settings, job.streams.systems, pages))
        return cls(
            PackedPackage(hashlib.sha256(data).hexdigest(), data),
            secrets.token_urlsafe(32),
        )


def pickled(package: object) -> bytes:
    """Pickle a package. User code may come from a script, so functions are pickled by value where they cannot be
    imported."""
    try:
        return dumps(package)
    except Exception as error:
        raise ConfigError(
            f"the application cannot be sent to the containers: {error}. Functions, tasks and serdes must be "
            "picklable; open files, locks and connections belong in StreamTask.init"
        ) from error


class CallerIdentities:
    """The newest identity, and earlier ones that containers may still ask for. None without TLS."""

    def __init__(self, *, tls: bool) -> None:
        self.current = new_identity("client") if tls else None
        self._known = {} if self.current is None else {self.current.certificate: self.current}
        self._fresh = True

    @property
    def is_due(self) -> bool:
        """True once half of the newest identity's time has passed."""
        return self.current is not None and self.current.is_old

    def of(self, callers: str | None) -> TlsIdentity | None:
        """The identity for a port whose callers must have this certificate; the newest if that is not known."""
        return self._known.get(callers or "", self.current)

    def begin_epoch(self) -> None:
        """Make a new identity, unless the first one has not been used yet."""
        if not self._fresh:
            self.renew()
        self._fresh = False

    def renew(self) -> None:
        """Make a new identity, and forget expired ones."""
        if self.current is not None:
            self.current = new_identity("client")
            self._known = {name: each for name, each in self._known.items() if not each.is_over}
            self._known[self.current.certificate] = self.current
