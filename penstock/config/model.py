"""The configuration of a job as frozen, typed values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config import keys, table
from penstock.config.table import AnyKey, EngineKind, Key, OffsetDefault, OnSideError
from penstock.config.values.broadcast import PartitionRange
from penstock.config.values.retained import RetentionPolicy
from penstock.errors import ConfigError

T = TypeVar("T")

DEFAULT_SYSTEM = "local"


@dataclass(frozen=True, slots=True)
class ResolvedValues:
    """The given values by flat key, and the home that defaults refer to."""

    home: Path
    values: Mapping[str, object] = field(repr=False)

    def find(self, key: Key[T], subject: str = "") -> T | None:
        """The value that holds for a key: given, of its fallback, or its default; None if there is none."""
        given = self.values.get(key.full(subject))
        if given is not None:
            return cast("T", given)
        if key.fallback is not None:
            return self.find(key.fallback, subject if key.fallback.is_pattern else "")
        return None if key.default is None else key.kind.read(key.default.replace("<home>", str(self.home)))

    def get(self, key: Key[T], subject: str = "") -> T:
        """The value that holds for a key. Raises ConfigError if there is none."""
        value = self.find(key, subject)
        if value is None:
            raise ConfigError(f"`{key.full(subject)}` is missing")
        return value


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


@dataclass(frozen=True, slots=True)
class JobSettings:
    """`job.*`, without its containers."""

    name: str
    id: str
    root: str
    root_keys: RootKeys
    logged_store_base_dir: Path
    batch_max_messages: int
    batch_max_bytes: int
    batch_target_ms: int
    batch_interval_ms: int
    lease_ms: int
    intermediate_stream_partitions: int | None
    retry_max: int
    host_affinity_enabled: bool
    standbys: int
    drain_poll_ms: int | None
    """None: the run does not look for requests to drain."""
    startpoint_enabled: bool
    startpoint_ttl_ms: int
    watermark_max_ahead_ms: int

    @property
    def keeps_copies(self) -> bool:
        """True if each host keeps a copy of its stores at the last checkpoint. With standbys it does, so that the tasks
        that are not lost restart as quickly as those that move."""
        return self.host_affinity_enabled or self.standbys > 0


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """`job.container.*` and `container.*`. `tls_enabled` None: True unless the master is local."""

    start_timeout_ms: int
    commit_thread_pool_size: int
    restore_thread_pool_size: int
    restore_timeout_ms: int
    lost_ms: int
    attempt_timeout_ms: int
    tls_enabled: bool | None


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """`task.*`. 0 or less means for `commit_ms`: only the application asks for commits; for `window_ms`: never; for
    `callback_*_timeout_ms`: no limit. A `callback_*_timeout_ms` of None: the rule for messages holds."""

    commit_ms: int
    commit_max_delay_ms: int
    commit_max_pending_bytes: int
    commit_timeout_ms: int
    callback_drain_timeout_ms: int | None
    callback_watermark_timeout_ms: int | None
    window_ms: int
    shutdown_ms: int
    dead_letter_stream: SystemStream | None
    broadcast_inputs: tuple[PartitionRange, ...]
    checkpoint_write_versions: tuple[int, ...]
    checkpoint_read_versions: tuple[int, ...]
    live_checkpoint_max_age_ms: int
    checkpoint_retained: RetentionPolicy


@dataclass(frozen=True, slots=True)
class StateSettings:
    """`state.*`, for the backend `changelog-files`. An interval of 0 is none."""

    changelog_enabled: bool
    snapshot_interval_commits: int
    snapshot_interval_seconds: int


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """`metrics.*`."""

    prometheus_port: int | None
    prometheus_host: str
    prometheus_token: str | None = field(repr=False)
    prometheus_tls: tuple[str, str] | None
    reporter_stream: SystemStream | None
    reporter_interval_s: int


@dataclass(frozen=True, slots=True)
class SideInputSettings:
    """`side.inputs.*`."""

    bootstrap_timeout_ms: int
    max_age_ms: int
    on_error: OnSideError


@dataclass(frozen=True, slots=True)
class TableSettings:
    """`tables.*`."""

    poll_ms: int
    versions_retained: int


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """`stores.<name>.*`, with the job-wide values as defaults."""

    name: str
    factory: EngineKind
    object_cache_size: int
    rocksdb_block_cache_bytes: int
    rocksdb_write_buffer_bytes: int
    backup_factories: tuple[str, ...]
    restore_factories: tuple[str, ...]
    changelog: SystemStream
    """The stream for the backend `changelog-stream`, set even if the backend is not in use."""
    changelog_settings: Mapping[str, str] = field(default_factory=dict)
    """The settings of that stream as a topic in Kafka, by Kafka's names."""
    side_inputs: tuple[SystemStream, ...] = ()
    side_broadcast: bool = False
    side_processor: str | None = None
    """`module:Class` of the factory of their processors."""


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """`systems.<name>.*`."""

    name: str
    factory: str
    """A short name, or `module:Class`."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options that only the system itself understands, by the rest of the key."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """A checked configuration. Immutable, picklable. Compared by its values, not by their origins."""

    job: JobSettings
    container: ContainerSettings
    task: TaskSettings
    state: StateSettings
    resolved: ResolvedValues
    origins: Mapping[str, str] = field(repr=False, compare=False)
    hidden: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """The keys whose values came from a file, the environment or a command: they are never shown."""

    @property
    def home(self) -> Path:
        """The folder of defaults: `PENSTOCK_HOME`, or `.penstock` in the working directory at load."""
        return self.resolved.home

    @property
    def spark(self) -> dict[str, str]:
        """Every `spark.*` key that was given, untouched; a copy."""
        return {key: str(value) for key, value in self.resolved.values.items() if key.startswith("spark.")}

    @property
    def metrics(self) -> MetricsSettings:
        certificate = self.resolved.find(table.METRICS_PROMETHEUS_CERTIFICATE)
        key = self.resolved.find(table.METRICS_PROMETHEUS_KEY)
        return MetricsSettings(
            self.resolved.find(table.METRICS_PROMETHEUS_PORT),
            self.resolved.get(table.METRICS_PROMETHEUS_HOST),
            self.resolved.find(table.METRICS_PROMETHEUS_TOKEN),
            None if certificate is None or key is None else (str(certificate), str(key)),
            self.resolved.find(table.METRICS_REPORTER_STREAM),
            self.resolved.get(table.METRICS_REPORTER_INTERVAL),
        )

    @property
    def run_id(self) -> str | None:
        """The name of the run, as the deployer chose it; None if it has no name."""
        return self.resolved.find(table.RUN_ID)

    @property
    def side_inputs(self) -> SideInputSettings:
        get = self.resolved.get
        return SideInputSettings(
            get(table.SIDE_BOOTSTRAP_TIMEOUT_MS), get(table.SIDE_MAX_AGE_MS), get(table.SIDE_ON_ERROR)
        )

    @property
    def tables(self) -> TableSettings:
        get = self.resolved.get
        return TableSettings(get(table.TABLES_POLL_MS), get(table.TABLES_VERSIONS_RETAINED))

    @property
    def store_names(self) -> tuple[str, ...]:
        """The stores that the configuration names, so that one the application lacks can be refused."""
        return self._subjects("stores.")

    @property
    def system_names(self) -> tuple[str, ...]:
        """All systems: `local`, and those that the configuration names."""
        return tuple(sorted({DEFAULT_SYSTEM, *(each.partition(".")[0] for each in self._subjects("systems."))}))

    def store(self, name: str) -> StoreSettings:
        get = self.resolved.get
        backup = get(table.STORE_BACKUP, name)
        return StoreSettings(
            name=name,
            factory=get(table.STORE_FACTORY, name),
            object_cache_size=get(table.STORE_OBJECT_CACHE, name),
            rocksdb_block_cache_bytes=get(table.STORE_BLOCK_CACHE, name),
            rocksdb_write_buffer_bytes=get(table.STORE_WRITE_BUFFER, name),
            backup_factories=backup,
            restore_factories=self.resolved.find(table.STORE_RESTORE, name) or backup,
            changelog=self.resolved.find(table.STORE_CHANGELOG, name) or self._default_changelog(name),
            changelog_settings=self._changelog_settings(name),
            side_inputs=self.resolved.find(table.STORE_SIDE_INPUTS, name) or (),
            side_broadcast=self.resolved.get(table.STORE_SIDE_BROADCAST, name),
            side_processor=self.resolved.find(table.STORE_SIDE_PROCESSOR, name),
        )

    @property
    def rooted_backends(self) -> tuple[str, ...]:
        return self._subjects(table.BACKEND_ROOT.prefix)

    def backend_root(self, name: str) -> str:
        return self.resolved.find(table.BACKEND_ROOT, name) or self.job.root

    def system(self, name: str) -> SystemSettings:
        """The settings of a system. Raises ConfigError if there is no such system, or its factory is not given."""
        known = self.system_names
        if name not in known:
            raise ConfigError(
                f"there is no system `{name}`; known: {', '.join(known)}; set `{table.SYSTEM_FACTORY.full(name)}`"
            )
        factory = self.resolved.find(table.SYSTEM_FACTORY, name) or ("local" if name == DEFAULT_SYSTEM else None)
        if factory is None:
            key = table.SYSTEM_FACTORY
            raise ConfigError(f"`{key.full(name)}` is missing: expected {key.kind.expected}")
        prefix, found = f"systems.{name}.", self.resolved.values.items()
        options = {key.removeprefix(prefix): str(value) for key, value in found if _is_option(key, prefix)}
        if factory == "local":
            options["path"] = str(self.resolved.get(table.SYSTEM_PATH, name))
        if factory == "files":
            options.setdefault("listing", f"{self.job.root.rstrip('/')}/_files")
        if factory in ("files", "kafka"):
            if self.job.root_keys.current is not None:
                options["root.key"] = self.job.root_keys.current
            if self.job.root_keys.previous is not None:
                options["root.key.previous"] = self.job.root_keys.previous
        return SystemSettings(name, factory, options)

    def offset_default(self, stream: SystemStream) -> OffsetDefault:
        """The start of a stream without a checkpoint, from the settings of the stream, else of its system, else of the
        job."""
        own = self.resolved.find(table.STREAM_OFFSET_DEFAULT, str(stream))
        if own is not None:
            return own
        return self.resolved.get(table.SYSTEM_OFFSET_DEFAULT, stream.system)

    def reset_offset(self, stream: SystemStream) -> bool:
        """True if a start ignores the stream's positions in the checkpoint."""
        return self.resolved.get(table.STREAM_RESET_OFFSET, str(stream))

    def is_bootstrap(self, stream: SystemStream) -> bool:
        """True if a run first reads the stream up to its end at the start, before it reads other inputs."""
        return self.resolved.get(table.STREAM_BOOTSTRAP, str(stream))

    def priority(self, stream: SystemStream) -> int:
        """The rank of an input among those that have new messages: the highest comes first."""
        return self.resolved.get(table.STREAM_PRIORITY, str(stream))

    def skips_lost(self, stream: SystemStream) -> bool:
        """True if the job continues at the oldest message after messages were deleted before it had read them."""
        return self.resolved.get(table.STREAM_ON_DATA_LOSS, str(stream)) == "skip"

    def idle_ms(self, stream: SystemStream) -> int:
        """The time for which a partition of the stream holds the watermark back while there is nothing to read."""
        return self.resolved.get(table.STREAM_IDLE_MS, str(stream))

    def exactly_once(self, stream: SystemStream) -> bool:
        """True if no message is in the output twice, whatever fails."""
        return self.resolved.get(table.STREAM_GUARANTEE, str(stream)) == "exactly-once"

    @property
    def exactly_once_streams(self) -> tuple[SystemStream, ...]:
        return tuple(each for each in self._streams(table.STREAM_GUARANTEE) if self.exactly_once(each))

    def retention(self, stream: SystemStream) -> StreamRetention | None:
        age = self.resolved.find(table.STREAM_RETENTION_MS, str(stream))
        size = self.resolved.find(table.STREAM_RETENTION_BYTES, str(stream))
        return None if age is None and size is None else StreamRetention(age, size)

    @property
    def retained_streams(self) -> tuple[SystemStream, ...]:
        return self._streams(table.STREAM_RETENTION_MS, table.STREAM_RETENTION_BYTES)

    def flat(self) -> dict[str, str]:
        """The given values, sorted by key, in the form `load_config` reads back; defaults are left out."""
        flat = {}
        for key, value in sorted(self.resolved.values.items()):
            match = keys.find(key)
            flat[key] = match.key.kind.text(value) if match else str(value)
        return flat

    def for_tasks(self) -> dict[str, str]:
        """The configuration as tasks see it: `flat` without possible secrets, the keys of Spark and of the root, and
        the options of systems."""
        hidden = (table.SYSTEM_OPTION, table.JOB_ROOT_KEY, table.JOB_ROOT_KEY_PREVIOUS)
        return {
            key: text
            for key, text in self.flat().items()
            if not (key.startswith("spark.") or ((match := keys.find(key)) and match.key in hidden))
        }

    def origin(self, key: str) -> str:
        """The origin of a flat key's value: `file:line`, `-c`, ...; `default` if it was not given."""
        return self.origins.get(key, "default")

    def changelog_partitions(self, stores: Iterable[str], task: int) -> dict[SystemStreamPartition, str]:
        """Changelog partition → store, for one task."""
        streams = {store: self.store(store).changelog for store in stores}
        return {SystemStreamPartition(each.system, each.stream, task): store for store, each in streams.items()}

    def _default_changelog(self, store: str) -> SystemStream:
        """A name unique to the job and store. A job's id has no dashes, and all runs of dashes in the store's part are
        even: read from the right, the first odd one ends the id."""
        return SystemStream(DEFAULT_SYSTEM, f"{self.job.name}-{self.job.id}-{store.replace('-', '--')}-changelog")

    def _changelog_settings(self, store: str) -> dict[str, str]:
        settings = {
            "segment.bytes": 536_870_912,
            "min.compaction.lag.ms": self.resolved.get(table.STORE_CHANGELOG_LAG_MS, store),
            "delete.retention.ms": self.resolved.get(table.STORE_CHANGELOG_DELETES_MS, store),
            "replication.factor": self.resolved.find(table.STORE_CHANGELOG_REPLICAS, store),
            "max.message.bytes": self.resolved.find(table.STORE_CHANGELOG_MESSAGE, store),
        }
        return {key: str(value) for key, value in settings.items() if value is not None}

    def _streams(self, *settings: AnyKey) -> tuple[SystemStream, ...]:
        found = (keys.find(key) for key in self.resolved.values)
        names = {match.subject for match in found if match and match.key in settings}
        return tuple(SystemStream.parse(name) for name in sorted(names))

    def _subjects(self, prefix: str) -> tuple[str, ...]:
        matches = (keys.find(key) for key in self.resolved.values)
        return tuple(sorted({match.subject for match in matches if match and match.key.prefix == prefix}))


def _is_option(key: str, prefix: str) -> bool:
    match = keys.find(key) if key.startswith(prefix) else None
    return match is not None and match.key in (table.SYSTEM_OPTION, table.SYSTEM_PATH)
