"""Every key of the configuration, declared once: type, default, description, and where its name comes from.

A default is written as a user would write it and read the same way; `<home>` in it stands for Penstock's home.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from penstock.api.retention import LEAST_RETENTION_BYTES
from penstock.config.values.broadcast import BroadcastInputs
from penstock.config.values.kinds import (
    Backends,
    Bytes,
    Choice,
    Factory,
    Flag,
    Kind,
    LocalPath,
    Millis,
    NameList,
    Number,
    OwnFactory,
    Passphrase,
    StreamName,
    StreamNames,
    Url,
    Verbatim,
    Word,
)
from penstock.config.values.retained import Retention

T = TypeVar("T")

Source: TypeAlias = Literal["Samza", "Penstock", "Spark"]
OffsetDefault: TypeAlias = Literal["oldest", "upcoming"]
EngineKind: TypeAlias = Literal["rocksdb", "memory"]
OnDataLoss: TypeAlias = Literal["fail", "skip"]
OnSideError: TypeAlias = Literal["fail", "continue"]
Guarantee: TypeAlias = Literal["at-least-once", "exactly-once"]

BACKENDS = ("changelog-files", "blob", "changelog-stream")

_BACKENDS = Backends(
    BACKENDS,
    {
        "org.apache.samza.storage.KafkaChangelogStateBackendFactory": "changelog-stream",
        "org.apache.samza.storage.blobstore.BlobStoreStateBackendFactory": "blob",
    },
)
_STORE_FACTORY = Choice[EngineKind](("rocksdb", "memory"))
_SAMZAS_KAFKA = "org.apache.samza.system.kafka.KafkaSystemFactory"
WITH_OPTIONS = ("files", "kafka", _SAMZAS_KAFKA)
"""The kinds of Penstock's systems that check their options themselves."""
_SYSTEM_FACTORY = Factory(
    ("files", "kafka", "local", "memory"),
    {"org.apache.samza.system.inmemory.InMemorySystemFactory": "memory", _SAMZAS_KAFKA: "kafka"},
)
_OFFSET_DEFAULT = Choice[OffsetDefault](("oldest", "upcoming"))
_ON_DATA_LOSS = Choice[OnDataLoss](("fail", "skip"))


@dataclass(frozen=True, eq=False)
class Key(Generic[T]):
    """One declared key. `name` holds at most one placeholder in angle brackets, which may stand for dots too; only
    `systems.<name>.<option>` has two, which are one subject."""

    name: str
    kind: Kind[T]
    default: str | None
    description: str
    source: Source = "Penstock"
    fallback: Key[T] | None = None
    """The key that counts if this one is not set."""
    unset: str = ""
    """The meaning of no value, if neither a default nor a fallback says it."""

    @property
    def prefix(self) -> str:
        """The part before the placeholder; the whole name if there is none."""
        return self.name.partition("<")[0]

    @property
    def suffix(self) -> str:
        """The part after the placeholder, with its leading dot."""
        rest = self.name.partition(">")[2]
        return "" if "<" in rest else rest

    @property
    def is_pattern(self) -> bool:
        return "<" in self.name

    @property
    def unit(self) -> str:
        return self.kind.unit

    def full(self, subject: str = "") -> str:
        return f"{self.prefix}{subject}{self.suffix}"


AnyKey: TypeAlias = Key[Any]

# fmt: off
JOB_NAME = Key("job.name", Word("A-Za-z0-9_.-", 128), None,
    "The name of the job. Its state and checkpoints are kept under this name.", "Samza",
    unset="the application's name")
JOB_ID = Key("job.id", Word("A-Za-z0-9_.", 64), "1",
    "Distinguishes copies of one job: each has its own state and checkpoints.", "Samza")
JOB_ROOT = Key("job.root", Url(), "<home>/jobs",
    "Where checkpoints, metadata and the backed-up state of jobs are kept. Every executor must be able to reach it.")
JOB_ROOT_KEY = Key("job.root.key", Passphrase(), None,
    "Every object under `job.root` and under the roots of state backends is signed with this key, and verified when it "
    "is read: nobody without it can make or change one. Penstock's own records in Kafka are signed too. All jobs of a "
    "root have the same key. An existing root is signed with `penstock job sign`.",
    unset="objects are not signed")
JOB_ROOT_KEY_PREVIOUS = Key("job.root.key.previous", Passphrase(), None,
    "The former `job.root.key`. Objects that are signed with it are read as well, until `penstock job sign` has signed "
    "them with the new one.",
    unset="only `job.root.key` counts")
LOGGED_STORE_BASE_DIR = Key("job.logged.store.base.dir", LocalPath(), "<home>/state",
    "The folder, on each executor's host, for the working copies of stores.", "Samza")
BATCH_MAX_MESSAGES = Key("job.batch.max.messages", Number(1), "200000",
    "The most messages that a batch reads, from all partitions together. At least one is read from each partition that "
    "has new messages.")
BATCH_MAX_BYTES = Key("job.batch.max.bytes", Bytes(1), "268435456",
    "The most bytes of keys and values that a batch reads, estimated from the size of earlier messages.")
BATCH_TARGET_MS = Key("job.batch.target.ms", Millis(0), "10000",
    "How long a batch should take. Batches begin small and then read as many messages as fit into this time, up to "
    "`job.batch.max.messages`. With 0, batches always read as much as the limits allow.")
BATCH_INTERVAL_MS = Key("job.batch.interval.ms", Millis(1), "100",
    "How long an idle job waits before it looks for new messages again.")
LEASE_MS = Key("job.lease.ms", Millis(1), "10000",
    "How long the lease must stay unchanged before another driver may take the job over.")
INTERMEDIATE_PARTITIONS = Key("job.intermediate.stream.partitions", Number(1), None,
    "The number of partitions that each repartition makes.", "Samza", unset="chosen by the planner")
HOST_AFFINITY = Key("job.host-affinity.enabled", Flag(), "false",
    "Whether each host keeps a copy of its stores at the last checkpoint, for a quick restart there.", "Samza")
STANDBY_FACTOR = Key("job.standbytasks.replication.factor", Number(1), "1",
    "How many containers hold the stores of each task. With 1, only the task's own container does; with 2, a standby "
    "does, too, and takes over when the task's container is lost.", "Samza")
WATERMARK_MAX_AHEAD_MS = Key("job.watermark.max.ahead.ms", Millis(0), "86400000",
    "A message whose event time is further ahead of the batch time than this does not move the watermark, so a broken "
    "clock makes no other message late. Such messages are processed and counted.")
DRAIN_MONITOR_ENABLED = Key("job.drain-monitor.enabled", Flag(), "true",
    "Whether a run looks for requests to drain. Samza's default is false.", "Samza")
DRAIN_MONITOR_INTERVAL = Key("job.drain-monitor.poll.interval.ms", Millis(1), "5000",
    "How often a run looks for requests to drain. Samza's default is 60,000.", "Samza")
STARTPOINT_ENABLED = Key("job.startpoint.enabled", Flag(), "true",
    "Whether a start applies startpoints. If not, they stay as they are.", "Samza")
STARTPOINT_TTL = Key("job.startpoint.ttl.ms", Millis(1), "43200000",
    "How long a startpoint waits for a start before it expires.")
RETRY_MAX = Key("job.retry.max", Number(0), "5",
    "How many failures since the last complete checkpoint are retried before the run ends.")

START_TIMEOUT_MS = Key("job.container.start.timeout.ms", Millis(1), "60000",
    "How long a container may take from its launch to its first heartbeat.")
COMMIT_POOL_SIZE = Key("job.container.commit.thread.pool.size", Number(1), "2",
    "The minimum number of threads in a container's commit pool, which grows with its tasks.", "Samza")
RESTORE_POOL_SIZE = Key("job.container.restore.thread.pool.size", Number(1), "2",
    "The minimum number of threads in a container's restore pool, which grows with its tasks.", "Samza")
RESTORE_TIMEOUT_MS = Key("job.container.restore.timeout.ms", Millis(1), "1800000",
    "How long restoring the stores of a task may take.")
TLS_ENABLED = Key("job.container.tls.enabled", Flag(), None,
    "Whether driver, Spark workers and containers on different hosts communicate over TLS, with certificates that they "
    "generate.", unset="`true`, unless the master is local")
LOST_MS = Key("container.lost.ms", Millis(1), "10000",
    "A container that has sent no heartbeat for this long is lost, and its tasks are restored elsewhere.")
ATTEMPT_TIMEOUT_MS = Key("container.attempt.timeout.ms", Millis(1), "600000",
    "An attempt of a task that makes no progress for this long is cancelled, and the batch runs again.")

COMMIT_MS = Key("task.commit.ms", Millis(), "60000",
    "The time between commits. With 0 or less, the job commits only when the application asks for it.", "Samza")
COMMIT_MAX_DELAY_MS = Key("task.commit.max.delay.ms", Millis(0), "60000",
    "A commit that falls due is skipped while the one in flight is younger than this. After that, processing waits for "
    "the one in flight.", "Samza")
COMMIT_MAX_PENDING = Key("task.commit.max.pending.bytes", Bytes(0), "268435456",
    "A commit that falls due is no longer skipped once this much has been written, in all containers together, since "
    "the last commit began.")
COMMIT_TIMEOUT_MS = Key("task.commit.timeout.ms", Millis(1), "1800000",
    "How long processing waits for a commit in flight before the run fails.", "Samza")
CALLBACK_DRAIN_TIMEOUT_MS = Key("task.callback.drain.timeout.ms", Millis(), None,
    "How long an operator of a task may take to drain, which includes `on_drain`, windows and timers, and how long the "
    "outputs may then take to be written. If they take longer, the run fails and its next start drains. 0 or less "
    "means no limit.", "Samza",
    unset="`container.attempt.timeout.ms`, for each message and each call")
CALLBACK_WATERMARK_TIMEOUT_MS = Key("task.callback.watermark.timeout.ms", Millis(), None,
    "How long an operator of a task may take, in one batch, for windows and timers that fire because time has passed. "
    "If it takes longer, the run fails. 0 or less means no limit.", "Samza",
    unset="`container.attempt.timeout.ms`, for each message and each call")
WINDOW_MS = Key("task.window.ms", Millis(), "-1",
    "How often the `window` method of each `WindowableTask` is called, in batch time. 0 or less means never.", "Samza")
SHUTDOWN_MS = Key("task.shutdown.ms", Millis(0), "30000",
    "How long a stopping container waits for its tasks to close.", "Samza")
DEAD_LETTER_STREAM = Key("task.dead.letter.stream", StreamName(), None,
    "The stream that receives each message on which the application failed, with the reason. The job continues.",
    unset="none: the run ends with the error")
BROADCAST_INPUTS = Key("task.broadcast.inputs", BroadcastInputs(), None,
    "Input partitions that every task reads. Each other partition belongs to the task of its number, and these "
    "partitions alone determine the number of tasks. Each task has its own position in a broadcast partition, and a "
    "message counts once for each task. Intended for a TaskApplication, or a `process` without a repartition: after a "
    "`partition_by`, a message arrives as many times as there are tasks.", "Samza",
    unset="none")
WRITE_VERSIONS = Key("task.checkpoint.write.versions", NameList(("2", "1")), "2",
    "The versions in which every checkpoint is written.", "Samza")
READ_VERSIONS = Key("task.checkpoint.read.versions", NameList(("2", "1")), "2,1",
    "The versions in which a checkpoint may be read, the preferred one first.", "Samza")
LIVE_CHECKPOINT_MAX_AGE = Key("task.live.checkpoint.max.age", Millis(0), "600000",
    "A newer checkpoint without the preferred version counts only if it is newer by more than this. With 0, the latest "
    "counts. A start that would therefore go back to an older checkpoint is refused, unless `--from` names it.",
    "Samza")
CHECKPOINT_RETAINED = Key("task.checkpoint.retained", Retention(), "10,24h,7d",
    "Which checkpoints are kept: the newest, then one an hour for some hours, then one a day for some days.")

CHANGELOG_ENABLED = Key("state.changelog.enabled", Flag(), "true",
    "Whether the backend `changelog-files` writes the changes of each commit. If not, each commit makes a snapshot.")
SNAPSHOT_COMMITS = Key("state.snapshot.interval.commits", Number(0), "20",
    "A snapshot of a store is made in the background after this many commits that changed it. 0 means no such limit.")
SNAPSHOT_SECONDS = Key("state.snapshot.interval.seconds", Number(0), "1800",
    "A snapshot of what was committed of a store since its last snapshot is made in the background after this many "
    "seconds. 0 means no such limit.")

BACKEND_ROOT = Key("state.backends.<name>.root", Url(), None,
    "Where a state backend, such as `blob`, keeps its objects. One commit can thus write to several object stores. "
    "Like `job.root`, this place must be shared by all hosts.",
    unset="`job.root`")

OFFSET_DEFAULT = Key("samza.offset.default", _OFFSET_DEFAULT, "oldest",
    "Where a stream without a checkpoint is read from.")
SYSTEM_OFFSET_DEFAULT_OLD = Key("systems.<name>.samza.offset.default", _OFFSET_DEFAULT, None,
    "The older name of `systems.<name>.default.stream.samza.offset.default`.", "Samza",
    fallback=OFFSET_DEFAULT)
SYSTEM_OFFSET_DEFAULT = Key("systems.<name>.default.stream.samza.offset.default", _OFFSET_DEFAULT, None,
    "Where a system's streams without a checkpoint are read from.", "Samza",
    fallback=SYSTEM_OFFSET_DEFAULT_OLD)
STREAM_OFFSET_DEFAULT = Key("streams.<id>.samza.offset.default", _OFFSET_DEFAULT, None,
    "Where this stream (`<id>` is `system.stream`) is read from without a checkpoint.", "Samza",
    unset="`systems.<name>.default.stream.samza.offset.default`")
STREAM_RESET_OFFSET = Key("streams.<id>.samza.reset.offset", Flag(), "false",
    "Whether each start reads this stream (`<id>` is `system.stream`) as if it had no checkpoint.", "Samza")
STREAM_BOOTSTRAP = Key("streams.<id>.samza.bootstrap", Flag(), "false",
    "Whether each run reads this input (`<id>` is `system.stream`) up to the end that it has at the start before it "
    "reads inputs without this setting.", "Samza")
STREAM_PRIORITY = Key("streams.<id>.samza.priority", Number(0), "0",
    "The rank of this input (`<id>` is `system.stream`) among those with new messages: the highest ones fill a batch "
    "first, and the others get what they leave of it.", "Samza")
STREAM_RETENTION_MS = Key("streams.<id>.retention.ms", Millis(1), None,
    "How long this stream (`<id>` is `system.stream`) keeps a message after it was appended, if the job creates the "
    "stream. A stream that exists must have the same retention.", unset="forever; any for a stream that exists")
STREAM_RETENTION_BYTES = Key("streams.<id>.retention.bytes", Bytes(LEAST_RETENTION_BYTES), None,
    "How many bytes of messages each partition of this stream keeps, under the same conditions.", unset="any amount")
STREAM_ON_DATA_LOSS = Key("streams.<id>.on.data.loss", _ON_DATA_LOSS, "fail",
    "How the job reacts if messages of this input (`<id>` is `system.stream`) were deleted before it had read them. "
    "`fail` ends the job with an error that names them; `skip` continues at the oldest message and counts the loss.")
STREAM_IDLE_MS = Key("streams.<id>.idle.ms", Millis(0), "60000",
    "How long the job must have been at the end of a partition of this stream (`<id>` is `system.stream`) before the "
    "partition no longer holds the watermark back. A partition with unread messages always does.")
STREAM_GUARANTEE = Key("streams.<id>.output.guarantee", Choice[Guarantee](("at-least-once", "exactly-once")),
    "at-least-once",
    "With `at-least-once`, a message may be in this output (`<id>` is `system.stream`) twice after a failure. With "
    "`exactly-once` it is not: the job publishes messages after the next commit, so readers see them later.")
SYSTEM_TYPE = Key("systems.<name>.type", _SYSTEM_FACTORY, None,
    "The older name of `systems.<name>.samza.factory`.",
    unset="`local` for the system `local`; required for others")
SYSTEM_FACTORY = Key("systems.<name>.samza.factory", _SYSTEM_FACTORY, None,
    "The kind of system. The streams of `kafka` are the topics of a Kafka cluster, those of `files` are folders of "
    "data files; `local` keeps its streams on disk, `memory` in the process. A system `local` always exists.",
    "Samza", fallback=SYSTEM_TYPE)
SYSTEM_PATH = Key("systems.<name>.path", LocalPath(), "<home>/streams",
    "The folder where a `local` system keeps its streams.")
SYSTEM_OPTION = Key("systems.<name>.<option>", Verbatim(), None,
    "An option of a system of the kind `kafka` (docs/kafka.md), `files` (docs/dataframes.md) or `module:Class`, a "
    "class of your own, which gets all of them. Tasks do not see these options.",
    unset="the system's default")

STORES_BLOCK_CACHE = Key("stores.rocksdb.block.cache.bytes", Bytes(0), "33554432",
    "The size of RocksDB's block cache for each store of a task.")
STORES_WRITE_BUFFER = Key("stores.rocksdb.write.buffer.bytes", Bytes(65536), "16777216",
    "The size of RocksDB's write buffer for each store of a task, and of the changes gathered above it.")
STORES_BACKUP = Key("stores.backup.factories", _BACKENDS, "changelog-files",
    "The state backends that every store is backed up to.", "Samza")
STORES_RESTORE = Key("stores.restore.factories", _BACKENDS, None,
    "The state backends that every store is restored from, in order of preference.", "Samza",
    unset="the store's backup factories")
STORE_FACTORY = Key("stores.<name>.factory", _STORE_FACTORY, "rocksdb",
    "Where a store's working copy is: in RocksDB on disk, or in memory.", "Samza")
STORE_OBJECT_CACHE = Key("stores.<name>.object.cache.size", Number(0), "100000",
    "The number of most recently used entries that a task keeps in memory. The cache holds at most twice as many.",
    "Samza")
STORE_BLOCK_CACHE = Key("stores.<name>.rocksdb.block.cache.bytes", Bytes(0), None,
    "The size of RocksDB's block cache for this store, in each task.", fallback=STORES_BLOCK_CACHE)
STORE_WRITE_BUFFER = Key("stores.<name>.rocksdb.write.buffer.bytes", Bytes(65536), None,
    "The size of RocksDB's write buffer for this store, and of the changes gathered above it, in each task.",
    fallback=STORES_WRITE_BUFFER)
STORE_BACKUP = Key("stores.<name>.backup.factories", _BACKENDS, None,
    "The state backends that this store is backed up to.", "Samza", fallback=STORES_BACKUP)
STORE_RESTORE = Key("stores.<name>.restore.factories", _BACKENDS, None,
    "The state backends that this store is restored from, in order of preference.", "Samza", fallback=STORES_RESTORE)
STORE_CHANGELOG = Key("stores.<name>.changelog", StreamName("local"), None,
    "The stream to which the backend `changelog-stream` writes this store's changes. It serves this store alone and "
    "has one partition for each task.",
    "Samza",
    unset="`local.<job.name>-<job.id>-<store>-changelog`, with each `-` in the store's name doubled")
STORES_CHANGELOG_LAG_MS = Key("stores.default.changelog.min.compaction.lag.ms", Millis(1), "14400000",
    "How long changelogs in Kafka keep every record. For this long after the next commit, a checkpoint can still be "
    "restored from them.", "Samza")
STORES_CHANGELOG_REPLICAS = Key("stores.default.changelog.replication.factor", Number(1), None,
    "How many brokers keep each changelog in Kafka.", "Samza",
    unset="`systems.<name>.default.stream.replication.factor`, or the brokers' default")
STORE_CHANGELOG_LAG_MS = Key("stores.<name>.changelog.min.compaction.lag.ms", Millis(1), None,
    "How long the store's changelog, if it is in Kafka, keeps every record.", "Samza",
    fallback=STORES_CHANGELOG_LAG_MS)
STORE_CHANGELOG_DELETES_MS = Key("stores.<name>.changelog.delete.retention.ms", Millis(1), "86400000",
    "How long a changelog in Kafka keeps a delete after its key was compacted. A restore must take less than half of "
    "this time.",
    "Samza")
STORE_CHANGELOG_REPLICAS = Key("stores.<name>.changelog.replication.factor", Number(1), None,
    "How many brokers keep the store's changelog, if it is in Kafka.", "Samza", fallback=STORES_CHANGELOG_REPLICAS)
STORE_CHANGELOG_MESSAGE = Key("stores.<name>.changelog.max.message.bytes", Bytes(1), None,
    "The largest batch of records that a changelog in Kafka accepts.", "Samza", unset="the brokers' default")
STORE_SIDE_INPUTS = Key("stores.<name>.side.inputs", StreamNames(), None,
    "The streams that fill this store, which the job then only reads. Their keys and values have the serdes of the "
    "store. They are not inputs of the job: do not name them in `app.input`.", "Samza",
    unset="as the application declares")
STORE_SIDE_PROCESSOR = Key("stores.<name>.side.inputs.processor.factory", OwnFactory(), None,
    "The `SideInputsProcessorFactory` that makes, for each task, the processor that turns messages of the store's side "
    "inputs into entries.", "Samza",
    unset="as the application declares; else each message is an entry")
STORE_SIDE_BROADCAST = Key("stores.<name>.side.inputs.broadcast", Flag(), "false",
    "Whether each task sees all entries of a store that `stores.<name>.side.inputs` fills. Each container then keeps "
    "the store once, and its streams may have any number of partitions.")
SIDE_BOOTSTRAP_TIMEOUT_MS = Key("side.inputs.bootstrap.timeout.ms", Millis(1), "600000",
    "How long a start may take to fill stores from their side inputs, up to the end that these streams had when it "
    "began.")
SIDE_MAX_AGE_MS = Key("side.inputs.max.age.ms", Millis(0), "86400000",
    "At a start, a host uses the copy that it has kept of a store with side inputs if the copy was updated within "
    "this time. Otherwise the store is filled again from the oldest message.")
SIDE_ON_ERROR = Key("side.inputs.on.error", Choice[OnSideError](("fail", "continue")), "fail",
    "How the job reacts if, after the start, a side input cannot be read or processed and retries do not help: `fail` "
    "ends the run; `continue` keeps the data at hand, logs the error repeatedly, and keeps trying.")
TABLES_POLL_MS = Key("tables.poll.ms", Millis(1), "5000",
    "How often the job looks for new versions of its pushed tables, and for a version chosen by `penstock table use`.")
TABLES_VERSIONS_RETAINED = Key("tables.versions.retained", Number(1), "3",
    "How many versions of each pushed table are kept, besides those in use and the one chosen by `penstock table "
    "use`.")

RUN_ID = Key("app.run.id", Word("A-Za-z0-9_.-", 64), None,
    "The name of the deployment, and so of its run. A start with the name of the last run continues that run; another "
    "name begins a new one. A start with the name of a run that has drained is refused.", "Samza",
    unset="a new id for every run; a start after a crash keeps the id")
APPLICATION = Key("app.<key>", Verbatim(), None,
    'A key of the application. Its tasks read it as `context.config["app.<key>"]`; Penstock ignores it.',
    unset="absent")

METRICS_PROMETHEUS_PORT = Key("metrics.prometheus.port", Number(0, 65535), None,
    "The port on the driver's host where Prometheus scrapes the job's metrics; 0 for any free port.",
    unset="no endpoint")
METRICS_PROMETHEUS_HOST = Key("metrics.prometheus.host", Verbatim(), "127.0.0.1",
    "The address on which the endpoint for Prometheus listens.")
METRICS_PROMETHEUS_TOKEN = Key("metrics.prometheus.token", Verbatim(), None,
    "The bearer token that scrapes must carry. Without it, the endpoint answers every request.",
    unset="none")
METRICS_PROMETHEUS_CERTIFICATE = Key("metrics.prometheus.tls.certificate.file", LocalPath(), None,
    "A PEM file with the certificate of the endpoint, which then speaks TLS.", unset="no TLS")
METRICS_PROMETHEUS_KEY = Key("metrics.prometheus.tls.key.file", LocalPath(), None,
    "A PEM file with the private key of that certificate.", unset="no TLS")
METRICS_REPORTER_STREAM = Key("metrics.reporter.snapshot.stream", StreamName(), None,
    "The stream to which all metrics are appended at an interval, in the format of Samza's metrics snapshots.",
    "Samza", unset="none")
METRICS_REPORTER_INTERVAL = Key("metrics.reporter.snapshot.interval", Number(1), "60",
    "The time between two snapshots in that stream, in seconds.", "Samza")

SPARK_MASTER = Key("spark.master", Verbatim(), None,
    "The Spark cluster to run on.", "Spark",
    unset="the value from `spark-submit` or `spark-defaults.conf`, else `local[*]`")
SPARK = Key("spark.<key>", Verbatim(), None,
    "Passed to Spark unchanged.", "Spark",
    unset="the value from `spark-submit` or `spark-defaults.conf`, else Penstock's or Spark's own default")
# fmt: on

KEYS: tuple[AnyKey, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Key))


def describe() -> tuple[AnyKey, ...]:
    """Every declared key, in the order of the reference."""
    return KEYS
