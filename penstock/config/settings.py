"""Every key of the configuration, declared once: here, or beside in `optional_settings.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from penstock.api.retention import LEAST_RETENTION_BYTES, StreamRetention
from penstock.api.ssp import SystemStream
from penstock.base.plugins import SYSTEMS
from penstock.base.secrets import RootKeys
from penstock.config import kinds
from penstock.config.key import AbsentDefault, AnyKey, DerivedDefault, Key, Settings, Topic, key
from penstock.config.optional_settings import MetricsSettings, SchemaRegistrySettings, SideInputSettings, TableSettings
from penstock.errors import ConfigError

LogFormat: TypeAlias = Literal["text", "json"]
OffsetDefault: TypeAlias = Literal["oldest", "upcoming"]
EngineKind: TypeAlias = Literal["rocksdb", "memory", "columns"]
OnDataLoss: TypeAlias = Literal["fail", "skip"]
Guarantee: TypeAlias = Literal["at-least-once", "exactly-once"]

DEFAULT_SYSTEM = "local"
BACKENDS = ("changelog-files", "blob", "changelog-stream")

_BACKENDS = kinds.Backends(
    BACKENDS,
    {
        "org.apache.samza.storage.KafkaChangelogStateBackendFactory": "changelog-stream",
        "org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory": "blob",
    },
)
_SAMZAS_KAFKA = "org.apache.samza.system.kafka.KafkaSystemFactory"
_SYSTEM_FACTORY = kinds.Factory(
    tuple(SYSTEMS),
    {"org.apache.samza.system.inmemory.InMemorySystemFactory": "memory", _SAMZAS_KAFKA: "kafka"},
)
_LOG_FORMAT = kinds.OneOf[LogFormat](("text", "json"))
_OFFSET_DEFAULT = kinds.OneOf[OffsetDefault](("oldest", "upcoming"))


# fmt: off
def _no_name(_: JobSettings) -> str:
    raise ConfigError("`job.name` is missing")


def _offset_default(stream: StreamSettings) -> OffsetDefault:
    return SystemKeys(stream.resolved, SystemStream.parse(stream.subject).system).offset_default


def _backup_factories(store: StoreSettings) -> tuple[str, ...]:
    return store.backup_factories


def _own_changelog(store: StoreSettings) -> SystemStream:
    """A name unique to the job and store. A job's id has no dashes, and all runs of dashes in the store's part are
    even: read from the right, the first odd one ends the id."""
    job, name = JobSettings(store.resolved), store.name.replace("-", "--")
    return SystemStream(DEFAULT_SYSTEM, f"{job.name}-{job.id}-{name}-changelog")


def _shadow_path(job: JobSettings) -> Path:
    return job.resolved.home / "shadow"


ROOT_OPTIONS = ("root", "root.key", "root.key.previous")
"""The options by which a system gets the root of the job and its keys. No configuration has them."""


class JobSettings(Settings):
    """`job.*`, without its containers."""

    name = key("job.name", Topic.JOB, kinds.Word("A-Za-z0-9_.-", 128),
        DerivedDefault("the application's name", _no_name),
        "The name of the job. Its state and checkpoints are kept under this name.", "Samza")
    id = key("job.id", Topic.JOB, kinds.Word("A-Za-z0-9_.", 64), "1",
        "Distinguishes copies of one job: each has its own state and checkpoints.", "Samza")
    root = key("job.root", Topic.JOB, kinds.Url(), "<home>/jobs",
        "Where checkpoints, metadata and the backed-up state of jobs are kept. Every executor must be able to reach "
        "it.")
    root_key = key("job.root.key", Topic.SECURITY, kinds.Passphrase(), AbsentDefault("objects are not signed"),
        "Every object under `job.root` and under the roots of state backends is signed with this key, and verified "
        "when it is read: nobody without it can make or change one. Penstock's own records in Kafka are signed too. "
        "All jobs of a root have the same key. An existing root is signed with `penstock job sign`.")
    root_key_previous = key("job.root.key.previous", Topic.SECURITY, kinds.Passphrase(),
        AbsentDefault("only `job.root.key` counts"),
        "The former `job.root.key`. Objects that are signed with it are read as well, until `penstock job sign` has "
        "signed them with the new one.")
    logged_store_base_dir = key("job.logged.store.base.dir", Topic.JOB, kinds.LocalPath(), "<home>/state",
        "The folder, on each executor's host, for the working copies of stores.", "Samza")
    batch_max_messages = key("job.batch.max.messages", Topic.BATCHES, kinds.Number(1), "200000",
        "The most messages that a batch reads, from all partitions together. At least one is read from each partition "
        "that has new messages.")
    batch_max_bytes = key("job.batch.max.bytes", Topic.BATCHES, kinds.ByteSize(1), "268435456",
        "The most bytes of keys and values that a batch reads, estimated from the size of earlier messages.")
    batch_target_ms = key("job.batch.target.ms", Topic.BATCHES, kinds.Millis(0), "10000",
        "The time that a batch should take. Batches begin small and then read as many messages as fit into this "
        "time, up to `job.batch.max.messages`. With 0, batches always read as much as the limits allow.")
    batch_interval_ms = key("job.batch.interval.ms", Topic.BATCHES, kinds.Millis(1), "100",
        "The time that an idle job waits before it looks for new messages again.")
    latency_target_ms = key("job.latency.target.ms", Topic.BATCHES, kinds.Millis(1),
        AbsentDefault("Spark runs every batch"),
        "The time after its arrival by which a message should be processed. With it, small batches go to the "
        "containers directly, without a Spark job.")
    batch_min_ms = key("job.batch.min.ms", Topic.BATCHES, kinds.Millis(0), "20",
        "The shortest time from the start of a batch to the start of the next, unless messages have piled up. It "
        "counts with `job.latency.target.ms` only. Batches are further apart where the target lets them be.")
    partial_aggregates_enabled = key("job.partial.aggregates.enabled", Topic.BATCHES, kinds.Flag(), "true",
        "Where messages in columns go to an aggregate, and have few keys, they are added up by key before they leave "
        "their process, and the sums travel. With false, each message travels: sums of floats are then made in the "
        "order of the messages.")
    log_format = key("job.log.format", Topic.MONITORING, _LOG_FORMAT, "text",
        "The form of the lines in the logs of containers and of `penstock run`. `json`: each line is an object with "
        "`time`, `level`, `logger`, `job`, `message` and, where they are known, `epoch`, `batch` and `task`.")
    dashboard_port = key("job.dashboard.port", Topic.MONITORING, kinds.Number(0, 65535), AbsentDefault("no dashboard"),
        "The port on the driver's host where the job's dashboard is served; 0 for any free port. The log names the "
        "file that has its address with the token. `penstock dashboard` serves one without a driver.")
    dashboard_host = key("job.dashboard.host", Topic.MONITORING, kinds.Verbatim(), "127.0.0.1",
        "The address on which the dashboard listens.")
    dashboard_token = key("job.dashboard.token", Topic.MONITORING,
        kinds.Verbatim(), AbsentDefault("a new one at each start, in a file that the log names"),
        "The token that the dashboard asks for.")
    lease_ms = key("job.lease.ms", Topic.FAILURES, kinds.Millis(1), "10000",
        "The time that the lease must stay unchanged before another driver may take the job over.")
    intermediate_stream_partitions = key("job.intermediate.stream.partitions", Topic.PARTITIONS, kinds.Number(1),
        AbsentDefault("chosen by the planner"),
        "The number of partitions that each repartition makes.", "Samza")
    host_affinity_enabled = key("job.host-affinity.enabled", Topic.STANDBYS, kinds.Flag(), "false",
        "Each host keeps a copy of its stores at the last checkpoint, for a quick restart there.", "Samza")
    standby_factor = key("job.standbytasks.replication.factor", Topic.STANDBYS, kinds.Number(1), "1",
        "The number of containers that hold the stores of each task. With 1, only the task's own container does; "
        "with 2, a standby does, too, and takes over when the task's container is lost.", "Samza")
    watermark_max_ahead_ms = key("job.watermark.max.ahead.ms", Topic.TIME, kinds.Millis(0), "86400000",
        "A message whose event time is further ahead of the batch time than this does not move the watermark, so a "
        "broken clock makes no other message late. Such messages are processed and counted.")
    drain_monitor_enabled = key("job.drain-monitor.enabled", Topic.STOPS, kinds.Flag(), "true",
        "The run looks for requests to drain. Samza's default is false.", "Samza")
    drain_monitor_interval_ms = key("job.drain-monitor.poll.interval.ms", Topic.STOPS, kinds.Millis(1), "5000",
        "The time between two looks for requests to drain. Samza's default is 60,000.", "Samza")
    startpoint_enabled = key("job.startpoint.enabled", Topic.STOPS, kinds.Flag(), "true",
        "A start applies startpoints. With `false`, they stay as they are.", "Samza")
    startpoint_ttl_ms = key("job.startpoint.ttl.ms", Topic.STOPS, kinds.Millis(1), "43200000",
        "The time that a startpoint waits for a start before it expires.")
    shadow_enabled = key("job.shadow.enabled", Topic.OUTPUTS, kinds.Flag(), "false",
        "The job is a shadow: all that it would write to a system goes to local streams of the same names, under "
        "`job.shadow.path`. It reads, and keeps state and checkpoints, as any job does.")
    shadow_path = key("job.shadow.path", Topic.OUTPUTS, kinds.LocalPath(),
        DerivedDefault("`<home>/shadow`", _shadow_path),
        "The folder where shadows keep what they write, in a folder for each job with one for each system in it.")
    replay_follows = key("job.replay.follows", Topic.OUTPUTS, kinds.Word("A-Za-z0-9_.-", 200),
        AbsentDefault("absent"),
        "The shadow makes the batches of this job, `name-id`, as its checkpoints name them, and none beyond the last "
        "one. `penstock deploy` sets it.")
    retry_max = key("job.retry.max", Topic.FAILURES, kinds.Number(0), "5",
        "The number of failures since the last complete checkpoint that are retried before the run ends.")

    @property
    def shadow_folder(self) -> Path:
        """Where the job keeps what it writes, if it is a shadow."""
        return self.shadow_path / f"{self.name}-{self.id}"

    @property
    def root_keys(self) -> RootKeys:
        return RootKeys(self.root_key, self.root_key_previous)

    @property
    def standbys(self) -> int:
        return self.standby_factor - 1

    @property
    def drain_poll_ms(self) -> int | None:
        """None: the run does not look for requests to drain."""
        return self.drain_monitor_interval_ms if self.drain_monitor_enabled else None

    @property
    def keeps_copies(self) -> bool:
        """True if each host keeps a copy of its stores at the last checkpoint. With standbys it does, so that the tasks
        that are not lost restart as quickly as those that move."""
        return self.host_affinity_enabled or self.standbys > 0


class ContainerSettings(Settings):
    """`job.container.*` and `container.*`."""

    start_timeout_ms = key("job.container.start.timeout.ms", Topic.FAILURES, kinds.Millis(1), "60000",
        "The time that a container may take from its launch to its first heartbeat.")
    restore_timeout_ms = key("job.container.restore.timeout.ms", Topic.FAILURES, kinds.Millis(1), "1800000",
        "The time that restoring the stores of a task may take.")
    tls_enabled = key("job.container.tls.enabled", Topic.SECURITY, kinds.Flag(),
        AbsentDefault("`true`, unless the master is local"),
        "Driver, Spark workers and containers on different hosts communicate over TLS, with certificates that they "
        "generate.")
    lost_ms = key("container.lost.ms", Topic.FAILURES, kinds.Millis(1), "10000",
        "A container that has sent no heartbeat for this long is lost, and its tasks are restored elsewhere.")
    attempt_timeout_ms = key("container.attempt.timeout.ms", Topic.FAILURES, kinds.Millis(1), "600000",
        "An attempt of a task that makes no progress for this long is cancelled, and the batch runs again.")


class TaskSettings(Settings):
    """`task.*`."""

    commit_ms = key("task.commit.ms", Topic.COMMITS, kinds.Millis(), "60000",
        "The time between commits. With 0 or less, the job commits only when the application asks for it.", "Samza")
    commit_group = key("task.commit.group", Topic.COMMITS, kinds.Verbatim(), AbsentDefault("none"),
        "The consumer group under which Kafka shows the positions of each commit in the inputs, for displays of lag "
        "and for scalers. The job itself never reads them. No consumer may use this group.")
    commit_max_delay_ms = key("task.commit.max.delay.ms", Topic.COMMITS, kinds.Millis(0), "60000",
        "A commit that falls due is skipped while the one in flight is younger than this. After that, processing "
        "waits for the one in flight.", "Samza")
    commit_max_pending_bytes = key("task.commit.max.pending.bytes", Topic.COMMITS, kinds.ByteSize(0), "268435456",
        "A commit that falls due is no longer skipped once this much has been written, in all containers together, "
        "since the last commit began.")
    commit_timeout_ms = key("task.commit.timeout.ms", Topic.COMMITS, kinds.Millis(1), "1800000",
        "The time that processing waits for a commit in flight before the run fails.", "Samza")
    callback_drain_timeout_ms = key("task.callback.drain.timeout.ms", Topic.STOPS, kinds.Millis(),
        AbsentDefault("`container.attempt.timeout.ms`, for each message and each call"),
        "The time that an operator of a task may take to drain, which includes `on_drain`, windows and timers, and "
        "the time that the outputs may then take to be written. If they take longer, the run fails and its next "
        "start drains. 0 or less means no limit.", "Samza")
    callback_watermark_timeout_ms = key("task.callback.watermark.timeout.ms", Topic.TIME, kinds.Millis(),
        AbsentDefault("`container.attempt.timeout.ms`, for each message and each call"),
        "The time that an operator of a task may take, in one batch, for windows and timers that fire because time "
        "has passed. If it takes longer, the run fails. 0 or less means no limit.", "Samza")
    window_ms = key("task.window.ms", Topic.TIME, kinds.Millis(), "-1",
        "The time between two calls of the `window` method of each `WindowableTask`, in batch time. 0 or less means "
        "never.", "Samza")
    shutdown_ms = key("task.shutdown.ms", Topic.STOPS, kinds.Millis(0), "30000",
        "The time that a stopping container waits for its tasks to close.", "Samza")
    dead_letter_stream = key("task.dead.letter.stream", Topic.FAILURES,
        kinds.StreamName(), AbsentDefault("none: the run ends with the error"),
        "The stream that receives each message on which the application failed, with the reason. The job continues.")
    broadcast_inputs = key("task.broadcast.inputs", Topic.PARTITIONS, kinds.BroadcastInputs(),
        DerivedDefault("none", lambda _: ()),
        "Input partitions that every task reads. Each other partition belongs to the task of its number, and these "
        "partitions alone determine the number of tasks. Each task has its own position in a broadcast partition, and "
        "a message counts once for each task. Intended for a TaskApplication, or a `process` without a repartition: "
        "after a `partition_by`, a message arrives as many times as there are tasks.", "Samza")
    checkpoint_write_versions = key("task.checkpoint.write.versions", Topic.COMMITS, kinds.Versions((2, 1)), "2",
        "The versions in which every checkpoint is written.", "Samza")
    checkpoint_read_versions = key("task.checkpoint.read.versions", Topic.COMMITS, kinds.Versions((2, 1)), "2,1",
        "The versions in which a checkpoint may be read, the preferred one first.", "Samza")
    checkpoint_retained = key("task.checkpoint.retained", Topic.COMMITS, kinds.RetainedCheckpoints(), "10,24h,7d",
        "The checkpoints that are kept: the newest, then one an hour for some hours, then one a day for some days.")


class StateSettings(Settings):
    """`state.*`, for the backend `changelog-files`, and the roots of all backends."""

    changelog_enabled = key("state.changelog.enabled", Topic.BACKUPS, kinds.Flag(), "true",
        "The backend `changelog-files` writes the changes of each commit. With `false`, each commit makes a snapshot.")
    snapshot_interval_commits = key("state.snapshot.interval.commits", Topic.BACKUPS, kinds.Number(0), "20",
        "A snapshot of a store is made in the background after this many commits that changed it. 0 means no such "
        "limit.")
    snapshot_interval_seconds = key("state.snapshot.interval.seconds", Topic.BACKUPS, kinds.Number(0), "1800",
        "A snapshot of what was committed of a store since its last snapshot is made in the background after this "
        "many seconds. 0 means no such limit.")
    backend_root = key("state.backends.<name>.root", Topic.BACKUPS, kinds.Url(),
        DerivedDefault("`job.root`", lambda state: JobSettings(state.resolved).root),
        "Where a state backend, such as `blob`, keeps its objects. One commit can thus write to several object "
        "stores. Like `job.root`, this place must be shared by all hosts.")


class SystemKeys(Settings):
    """`systems.<name>.*`, as given; see `SystemSettings`."""

    any_offset_default = key("samza.offset.default", Topic.INPUTS, _OFFSET_DEFAULT, "oldest",
        "Where a stream without a checkpoint is read from.")
    offset_default = key("systems.<name>.default.stream.samza.offset.default", Topic.INPUTS, _OFFSET_DEFAULT,
        any_offset_default,
        "Where a system's streams without a checkpoint are read from.", "Samza")
    factory = key("systems.<name>.samza.factory", Topic.SYSTEMS, _SYSTEM_FACTORY,
        AbsentDefault("`local` for the system `local`; required for others"),
        "The kind of system. The streams of `kafka` are the topics of a Kafka cluster, those of `files` are folders "
        "of data files, those of `delta`, `iceberg` and `database` tables; `local` keeps its streams on disk, `memory` "
        "in the process. A system `local` always exists.",
        "Samza")
    path = key("systems.<name>.path", Topic.SYSTEMS, kinds.LocalPath(), "<home>/streams",
        "The folder where a `local` system keeps its streams.")
    option = key("systems.<name>.<option>", Topic.SYSTEMS, kinds.Verbatim(), AbsentDefault("the system's default"),
        "An option of a system of the kind `kafka` (docs/kafka.md), `files` (docs/files.md), `delta` or `iceberg` "
        "(docs/lakes.md), `database` (docs/databases.md) or `module:Class`, a class of your own, which gets all of "
        "them. Tasks do not see these options.")


class StreamSettings(Settings):
    """`streams.<id>.*`. The subject is the stream, `system.stream`."""

    offset_default = key("streams.<id>.samza.offset.default", Topic.INPUTS, _OFFSET_DEFAULT,
        DerivedDefault("`systems.<name>.default.stream.samza.offset.default`", _offset_default),
        "Where this stream (`<id>` is `system.stream`) is read from without a checkpoint.", "Samza")
    reset_offset = key("streams.<id>.samza.reset.offset", Topic.INPUTS, kinds.Flag(), "false",
        "Each start reads this stream (`<id>` is `system.stream`) as if it had no checkpoint.", "Samza")
    bootstrap = key("streams.<id>.samza.bootstrap", Topic.INPUTS, kinds.Flag(), "false",
        "Each run reads this input (`<id>` is `system.stream`) up to the end that it has at the start before it "
        "reads inputs without this setting.", "Samza")
    priority = key("streams.<id>.samza.priority", Topic.INPUTS, kinds.Number(0), "0",
        "The rank of this input (`<id>` is `system.stream`) among those with new messages: the highest ones fill a "
        "batch first, and the others get what they leave of it. A task reads them in this order.", "Samza")
    retention_ms = key("streams.<id>.retention.ms", Topic.OUTPUTS,
        kinds.Millis(1), AbsentDefault("forever; any for a stream that exists"),
        "The time that this stream (`<id>` is `system.stream`) keeps a message after it was appended, if the job "
        "creates the stream. A stream that exists must have the same retention.")
    retention_bytes = key("streams.<id>.retention.bytes", Topic.OUTPUTS,
        kinds.ByteSize(LEAST_RETENTION_BYTES), AbsentDefault("any amount"),
        "The bytes of messages that each partition of this stream keeps, under the same conditions.")
    on_data_loss = key("streams.<id>.on.data.loss", Topic.INPUTS, kinds.OneOf[OnDataLoss](("fail", "skip")), "fail",
        "The reaction to messages of this input (`<id>` is `system.stream`) that were deleted before the job had "
        "read them. `fail` ends the job with an error that names them; `skip` continues at the oldest message and "
        "counts the loss.")
    idle_ms = key("streams.<id>.idle.ms", Topic.TIME, kinds.Millis(0), "60000",
        "The time that the job must have been at the end of a partition of this stream (`<id>` is `system.stream`) "
        "before the partition no longer holds the watermark back. A partition with unread messages always does.")
    output_guarantee = key("streams.<id>.output.guarantee", Topic.OUTPUTS,
        kinds.OneOf[Guarantee](("at-least-once", "exactly-once")),
        "at-least-once",
        "With `at-least-once`, a message may be in this output (`<id>` is `system.stream`) twice after a failure. "
        "With `exactly-once` it is not: the job publishes messages after the next commit, so readers see them later.")

    @property
    def skips_lost(self) -> bool:
        return self.on_data_loss == "skip"

    @property
    def exactly_once(self) -> bool:
        return self.output_guarantee == "exactly-once"

    @property
    def retention(self) -> StreamRetention | None:
        age, size = self.retention_ms, self.retention_bytes
        return None if age is None and size is None else StreamRetention(age, size)


class StoreSettings(Settings):
    """`stores.<name>.*`, with the values for all stores as defaults."""

    all_block_cache_bytes = key("stores.rocksdb.block.cache.bytes", Topic.STORES, kinds.ByteSize(0), "33554432",
        "The size of RocksDB's block cache for each store of a task.")
    all_write_buffer_bytes = key("stores.rocksdb.write.buffer.bytes", Topic.STORES, kinds.ByteSize(65536), "16777216",
        "The size of RocksDB's write buffer for each store of a task, and of the changes gathered above it.")
    all_memory_bytes = key("stores.memory.total.bytes", Topic.STORES, kinds.ByteSize(1 << 20),
        AbsentDefault("each store has its own cache and buffers"),
        "The memory that RocksDB should take for block caches, indexes and write buffers of all stores in a container "
        "together. Many writes at once exceed it for a moment. The changes gathered above RocksDB are not in it.")
    all_backup_factories = key("stores.backup.factories", Topic.BACKUPS, _BACKENDS, "changelog-files",
        "The state backends that every store is backed up to.", "Samza")
    all_restore_factories = key("stores.restore.factories", Topic.BACKUPS, _BACKENDS,
        DerivedDefault("the store's backup factories", _backup_factories),
        "The state backends that every store is restored from, in order of preference.", "Samza")
    all_min_compaction_lag_ms = key("stores.default.changelog.min.compaction.lag.ms", Topic.CHANGELOGS,
        kinds.Millis(1), "14400000",
        "The time for which changelogs in Kafka keep every record. For this long after the next commit, a checkpoint "
        "can still be restored from them.", "Samza")
    all_replication_factor = key("stores.default.changelog.replication.factor", Topic.CHANGELOGS, kinds.Number(1),
        AbsentDefault("`systems.<name>.default.stream.replication.factor`, or the brokers' default"),
        "The number of brokers that keep each changelog in Kafka.", "Samza")
    factory = key("stores.<name>.factory", Topic.STORES,
        kinds.OneOf[EngineKind](("rocksdb", "memory", "columns")), "rocksdb",
        "Where a store's working copy is: in RocksDB on disk; in memory, in order; or in memory, in columns, as by "
        "default for stores that operators use by column.", "Samza")
    columns_max_bytes = key("stores.<name>.columns.max.bytes", Topic.STORES, kinds.ByteSize(1), "1073741824",
        "The most memory that a store in columns may take in each task. If it needs more, the run ends.")
    object_cache_size = key("stores.<name>.object.cache.size", Topic.STORES, kinds.Number(0), "100000",
        "The number of most recently used entries that a task keeps in memory. The cache holds at most twice as many.",
        "Samza")
    rocksdb_block_cache_bytes = key("stores.<name>.rocksdb.block.cache.bytes", Topic.STORES,
        kinds.ByteSize(0), all_block_cache_bytes,
        "The size of RocksDB's block cache for this store, in each task.")
    rocksdb_write_buffer_bytes = key("stores.<name>.rocksdb.write.buffer.bytes", Topic.STORES,
        kinds.ByteSize(65536), all_write_buffer_bytes,
        "The size of RocksDB's write buffer for this store, and of the changes gathered above it, in each task.")
    backup_factories = key("stores.<name>.backup.factories", Topic.BACKUPS, _BACKENDS, all_backup_factories,
        "The state backends that this store is backed up to.", "Samza")
    restore_factories = key("stores.<name>.restore.factories", Topic.BACKUPS, _BACKENDS, all_restore_factories,
        "The state backends that this store is restored from, in order of preference.", "Samza")
    changelog = key("stores.<name>.changelog", Topic.CHANGELOGS, kinds.StreamName("local"),
        DerivedDefault(
            "`local.<job.name>-<job.id>-<store>-changelog`, with each `-` in the store's name doubled", _own_changelog),
        "The stream to which the backend `changelog-stream` writes this store's changes. It serves this store alone "
        "and has one partition for each task.", "Samza")
    min_compaction_lag_ms = key("stores.<name>.changelog.min.compaction.lag.ms", Topic.CHANGELOGS,
        kinds.Millis(1), all_min_compaction_lag_ms,
        "The time for which the store's changelog, if it is in Kafka, keeps every record.", "Samza")
    delete_retention_ms = key("stores.<name>.changelog.delete.retention.ms", Topic.CHANGELOGS, kinds.Millis(1),
        "86400000",
        "The time for which a changelog in Kafka keeps a delete after its key was compacted. A restore must take "
        "less than half of this time.", "Samza")
    replication_factor = key("stores.<name>.changelog.replication.factor", Topic.CHANGELOGS,
        kinds.Number(1), all_replication_factor,
        "The number of brokers that keep the store's changelog, if it is in Kafka.", "Samza")
    max_message_bytes = key("stores.<name>.changelog.max.message.bytes", Topic.CHANGELOGS,
        kinds.ByteSize(1), AbsentDefault("the brokers' default"),
        "The largest batch of records that a changelog in Kafka accepts.", "Samza")
    side_inputs = key("stores.<name>.side.inputs", Topic.REFERENCE_DATA,
        kinds.StreamNames(), DerivedDefault("as the application declares", lambda _: ()),
        "The streams that fill this store, which the job then only reads. Their keys and values have the serdes of "
        "the store. They are not inputs of the job: do not name them in `app.input`.", "Samza")
    side_processor = key("stores.<name>.side.inputs.processor.factory", Topic.REFERENCE_DATA, kinds.OwnFactory(),
        AbsentDefault("as the application declares; else each message is an entry"),
        "The `SideInputsProcessorFactory` that makes, for each task, the processor that turns messages of the store's "
        "side inputs into entries.", "Samza")
    side_broadcast = key("stores.<name>.side.inputs.broadcast", Topic.REFERENCE_DATA, kinds.Flag(), "false",
        "Each task sees all entries of a store that `stores.<name>.side.inputs` fills. Each container then keeps the "
        "store once, and its streams may have any number of partitions.")

    @property
    def name(self) -> str:
        return self.subject

    @property
    def changelog_settings(self) -> Mapping[str, str]:
        """The settings of the changelog as a topic in Kafka, by Kafka's names."""
        own = type(self)
        keys = (own.min_compaction_lag_ms, own.delete_retention_ms, own.replication_factor, own.max_message_bytes)
        given = {key.name.removeprefix(f"{own.changelog.name}."): self.value(key) for key in keys}
        return {"segment.bytes": "536870912"} | {name: str(value) for name, value in given.items() if value is not None}


class OtherSettings(Settings):
    """The run, and keys that Penstock passes on."""

    run_id = key("app.run.id", Topic.JOB, kinds.Word("A-Za-z0-9_.-", 64),
        AbsentDefault("a new id for every run; a start after a crash keeps the id"),
        "The name of the deployment, and so of its run. A start with the name of the last run continues that run; "
        "another name begins a new one. A start with the name of a run that has drained is refused.", "Samza")
    application = key("app.<key>", Topic.JOB, kinds.Verbatim(), AbsentDefault("absent"),
        'A key of the application. Its tasks read it as `context.config["app.<key>"]`; Penstock ignores it.')
    spark_master = key("spark.master", Topic.SPARK, kinds.Verbatim(),
        AbsentDefault("the value from `spark-submit` or `spark-defaults.conf`, else `local[*]`"),
        "The Spark cluster to run on.", "Spark")
    spark = key("spark.<key>", Topic.SPARK, kinds.Verbatim(),
        AbsentDefault("the value from `spark-submit` or `spark-defaults.conf`, else Penstock's or Spark's own default"),
        "Passed to Spark unchanged.", "Spark")

# fmt: on

_GROUPS: tuple[type[Settings], ...] = (
    *(JobSettings, ContainerSettings, TaskSettings, StateSettings, SystemKeys, StreamSettings, StoreSettings),
    *(SideInputSettings, TableSettings, SchemaRegistrySettings, MetricsSettings, OtherSettings),
)
KEYS: tuple[AnyKey, ...] = tuple(value for group in _GROUPS for value in vars(group).values() if isinstance(value, Key))
"""Every key, in the order of the reference."""
