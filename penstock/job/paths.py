"""The keys of a job's objects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from penstock.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_RECORD = re.compile(r"([0-9]{20})\.json")
_VERSIONED = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(delta|zip)")
_OUTBOX = re.compile(r"(0|[1-9][0-9]*)-")
_MAX_SLOT = 10**20 - 1
_MANIFEST = re.compile(r"([0-9]{10})\.json")
_MAX_VERSION = 10**10 - 1


@dataclass(frozen=True, slots=True)
class JobPaths:
    """Keys of one job below `job.root`: `<name>-<id>/...`. Two different jobs never share a key.

    Names may hold letters, digits, `_`, `.` and `-` and begin with neither of the last two; the id holds no `-`,
    so that the last one in `<name>-<id>` separates.

    Raises:
        ConfigError: a name, here or in a method, has another form.
    """

    name: str
    job_id: str

    def __post_init__(self) -> None:
        _check_name("job.name", self.name)
        _check_name("job.id", self.job_id)
        if "-" in self.job_id:
            raise ConfigError(f"`job.id` is `{self.job_id}`; it must not hold `-`, use `_` instead")

    @property
    def root(self) -> str:
        return f"{self.name}-{self.job_id}"

    @property
    def uid(self) -> str:
        return f"{self.root}/uid"

    @property
    def home(self) -> str:
        """The object of a fork that names its parent."""
        return f"{self.root}/home"

    @property
    def deleting(self) -> str:
        """The object that says that the job is being deleted."""
        return f"{self.root}/deleting"

    @property
    def checkpoints(self) -> str:
        return f"{self.root}/checkpoints"

    def checkpoint(self, slot: int) -> str:
        """The keys sort as the slots do."""
        if not 0 <= slot <= _MAX_SLOT:
            raise ConfigError(f"slot {slot} of the checkpoint log is not between 0 and {_MAX_SLOT}")
        return f"{self.checkpoints}/{slot:020d}.json"

    def outbox(self, name: str = "") -> str:
        """An object that waits to be published; without a name, the folder of all of them."""
        folder = f"{self.root}/outbox"
        return f"{folder}/{_check_name('the name of an object', name)}" if name else folder

    def slot_of(self, key: str) -> int | None:
        """The slot of a record of the checkpoint log; None for any other key."""
        match = _RECORD.fullmatch(key.removeprefix(f"{self.checkpoints}/"))
        return int(match[1]) if match and key.startswith(f"{self.checkpoints}/") else None

    def metadata_folder(self, namespace: str) -> str:
        """The folder of a namespace, such as `samza-startpoint-v1`, `samza-drain-v1` or `lease`."""
        return f"{self.root}/metadata/{_check_name('metadata namespace', namespace)}"

    def metadata(self, namespace: str, key: str) -> str:
        """An object of a namespace. Any text is a key: characters that a path cannot hold are percent-encoded."""
        if not key:
            raise ConfigError(f"a metadata key of namespace `{namespace}` is empty")
        encoded = quote(key, safe=" :=@+,")
        # A leading dot could make `.`, `..` or one of the store's own names.
        encoded = f"%2E{encoded[1:]}" if encoded.startswith(".") else encoded
        return f"{self.metadata_folder(namespace)}/{encoded}"

    def metadata_key(self, namespace: str, path: str) -> str:
        """The inverse of `metadata`."""
        folder = f"{self.metadata_folder(namespace)}/"
        if not path.startswith(folder):
            raise ConfigError(f"`{path}` is not below `{folder}`")
        return unquote(path.removeprefix(folder))

    @property
    def lease(self) -> str:
        return self.metadata("lease", "driver")

    @property
    def state(self) -> str:
        """The folder of the objects of all backends."""
        return f"{self.root}/state"

    def store_folder(self, store: str) -> str:
        return f"{self.state}/{_check_name('store', store)}"

    def state_folder(self, store: str, task: int) -> str:
        if task < 0:
            raise ConfigError(f"task {task} of store `{store}` is negative")
        return f"{self.store_folder(store)}/{task}"

    def state_object(self, store: str, task: int, name: str) -> str:
        """An object of a backend. `name` may have several segments, each of a name's form, and carries the epoch."""
        for segment in name.split("/"):
            _check_name("state object", segment)
        return f"{self.state_folder(store, task)}/{name}"

    @property
    def audit_log(self) -> str:
        """The folder of the audit log. It stays when the job is deleted."""
        return f"{self.root}/audit"

    def audit_record(self, time_ms: int, name: str) -> str:
        """The keys sort by time."""
        return f"{self.audit_log}/{time_ms:013d}-{_check_name('the name of a record', name)}.json"

    @property
    def tables(self) -> str:
        return f"{self.root}/tables"

    def table_folder(self, table: str) -> str:
        return f"{self.tables}/{_check_name('table', table)}"

    def table_versions(self, table: str) -> str:
        return f"{self.table_folder(table)}/versions"

    def table_version(self, table: str, version: int) -> str:
        """The manifest of a version. The keys sort as the versions do."""
        if not 1 <= version <= _MAX_VERSION:
            raise ConfigError(f"version {version} of table `{table}` is not between 1 and {_MAX_VERSION}")
        return f"{self.table_versions(table)}/{version:010d}.json"

    def table_version_of(self, key: str) -> int | None:
        """The version of a manifest; None for any other key."""
        match = _MANIFEST.fullmatch(key.rpartition("/")[2])
        return int(match[1]) if match else None

    def table_builds(self, table: str) -> str:
        return f"{self.table_folder(table)}/builds"

    def table_build(self, table: str, build: str) -> str:
        return f"{self.table_builds(table)}/{_check_name('build', build)}"

    def table_file(self, table: str, build: str, name: str) -> str:
        return f"{self.table_build(table, build)}/{_check_name('file', name)}"

    def delta(self, store: str, task: int, version: int, epoch: int) -> str:
        """The net changes of one version."""
        return self.state_object(store, task, f"{version}.{epoch}.delta")

    def snapshot(self, store: str, task: int, version: int, epoch: int) -> str:
        """The whole store at one version."""
        return self.state_object(store, task, f"{version}.{epoch}.zip")


def outbox_epoch(key: str) -> int | None:
    """The epoch in which an object of an outbox was written; None for any other key."""
    match = _OUTBOX.match(key.rpartition("/")[2])
    return int(match[1]) if match else None


def versioned_name(name: str) -> tuple[int, int, str] | None:
    """(version, epoch, `delta` or `zip`) of the last segment of a key; None for any other object."""
    match = _VERSIONED.fullmatch(name.rpartition("/")[2])
    return (int(match[1]), int(match[2]), match[3]) if match else None


def _check_name(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} `{name}` may hold `a` to `z`, `A` to `Z`, digits, `_`, `-` and `.` only, and begins with neither "
            "`-` nor `.`"
        )
    return name
