"""The keys of other systems that Penstock does not have, each with what takes its place: Samza's, and those of Spark's
streaming queries that mean nothing to a job. docs/samza.md has them as tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class ForeignKeys:
    """Some keys of another system that have one answer. `<name>` in a key is any name, and `*` any text."""

    keys: tuple[str, ...]
    answer: str

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(re.sub(r"<\w+>|\\\*", ".+", re.escape(key)) for key in self.keys))

    def has(self, key: str) -> bool:
        return self._pattern.fullmatch(key) is not None


SAMZA_KEYS = (
    ForeignKeys(
        ("app.class", "app.api.type", "task.class"),
        "remove it; `penstock run module:object` names the application",
    ),
    ForeignKeys(("app.name",), "use `job.name`"),
    ForeignKeys(("app.id",), "use `job.id`"),
    ForeignKeys(
        (
            "app.runner.class",
            "app.mode",
            "app.main.class",
            "app.main.args",
            "app.processor.id",
            "app.processor.id.*",
            "job.factory.class",
        ),
        "remove it; Spark runs the job",
    ),
    ForeignKeys(
        ("blob.store.*",),
        "remove it; the backend `blob` keeps its objects under `state.backends.blob.root`, else `job.root`",
    ),
    ForeignKeys(("job.autosizing.*",), "use Spark's dynamic allocation, `spark.dynamicAllocation.*`"),
    ForeignKeys(("job.changelog.system",), "name each stream with its system: `stores.<name>.changelog`"),
    ForeignKeys(
        ("job.config.rewriters", "job.config.rewriter.*"),
        "remove it; to read all streams of a pattern, use `app.input(..., pattern=True)`",
    ),
    ForeignKeys(
        ("job.container.commit.thread.pool.*", "job.container.restore.thread.pool.*"),
        "remove it; the pools have two threads for each task, and at most 64",
    ),
    ForeignKeys(
        ("job.container.count", "cluster-manager.*", "yarn.*"),
        "Spark gives the containers: use `spark.*`, such as `spark.executor.instances`",
    ),
    ForeignKeys(
        ("job.coordinator.*", "job.coordination.*", "startpoint.metadata.store.*"),
        "remove it; metadata is under `job.root`",
    ),
    ForeignKeys(("job.default.system",), "remove it; streams are named `system.stream`"),
    ForeignKeys(
        ("job.jmx.enabled", "metrics.reporters", "metrics.reporter.<name>.class"),
        "`metrics.reporter.snapshot.stream` and `metrics.prometheus.port` are all that exports metrics",
    ),
    ForeignKeys(
        ("metrics.reporter.<name>.stream", "metrics.reporter.<name>.interval"),
        "use `metrics.reporter.snapshot.stream` and `metrics.reporter.snapshot.interval`",
    ),
    ForeignKeys(("job.non-logged.store.base.dir",), "use `job.logged.store.base.dir`: every store is backed up"),
    ForeignKeys(
        ("job.systemstreampartition.*", "task.name.grouper.factory"),
        "remove it; task i reads partition i of every input",
    ),
    ForeignKeys(
        ("serializers.registry.*", "stores.*.serde", "streams.*.samza.*.serde", "systems.*.samza.*.serde"),
        "remove it; the application declares serdes, as in `app.store(name, key=..., value=...)`",
    ),
    ForeignKeys(("stores.<name>.changelog.kafka.*",), "give the topic its other settings yourself"),
    ForeignKeys(
        ("stores.<name>.container.cache.size.bytes",),
        "use `stores.<name>.rocksdb.block.cache.bytes`, a size for each task",
    ),
    ForeignKeys(
        ("stores.<name>.container.write.buffer.size.bytes",),
        "use `stores.<name>.rocksdb.write.buffer.bytes`, a size for each task",
    ),
    ForeignKeys(
        ("stores.<name>.rocksdb.ttl.ms",),
        "remove it; the application declares how long entries live: `app.store(name, ttl_ms=...)`",
    ),
    ForeignKeys(
        ("stores.<name>.side.inputs.processor.serialized.instance",),
        "use `app.store(name, side_inputs=[...], processor=...)`, or `stores.<name>.side.inputs.processor.factory`",
    ),
    ForeignKeys(
        (
            "stores.<name>.write.batch.size",
            "stores.<name>.disallow.large.messages",
            "stores.<name>.drop.large.messages",
            "stores.<name>.clean.on.container.start",
        ),
        "remove it; changes are gathered up to `stores.<name>.rocksdb.write.buffer.bytes`",
    ),
    ForeignKeys(("streams.<id>.samza.broadcast",), "use `task.broadcast.inputs`"),
    ForeignKeys(
        ("streams.<id>.samza.delete.committed.messages", "systems.<name>.samza.delete.committed.messages"),
        "remove it; inputs are never deleted",
    ),
    ForeignKeys(("streams.<id>.samza.intermediate",), "remove it; streams between stages are Spark's shuffles"),
    ForeignKeys(
        ("streams.<id>.samza.physical.name", "streams.<id>.samza.system"),
        "remove it; the id is `system.stream`, the name of the system and of the stream in it",
    ),
    ForeignKeys(
        ("systems.<name>.samza.fetch.threshold", "systems.<name>.samza.fetch.threshold.bytes"),
        "use `job.batch.max.messages` and `job.batch.max.bytes`",
    ),
    ForeignKeys(
        ("systems.<name>.samza.offset.default",),
        "use `systems.<name>.default.stream.samza.offset.default`, the name that Samza prefers, too",
    ),
    ForeignKeys(("systems.<name>.streams.<stream>.samza.*",), "use the keys `streams.<name>.<stream>.samza.*`"),
    ForeignKeys(
        ("max.commit.delay", "task.max.commit.delay"),
        "use `task.commit.max.delay.ms`, which SEP-28 proposed under this name: a commit is skipped while the one in "
        "flight is younger than this, and then processing waits for that one",
    ),
    ForeignKeys(
        ("stores.<name>.backup.factory",),
        "use `stores.<name>.backup.factories`, the list of backends that the store is backed up to",
    ),
    ForeignKeys(
        ("stores.<name>.restore.factory",),
        "use `stores.<name>.restore.factories`, which SEP-28 proposed under this name: a list of backends, and a start "
        "restores from the first one that has the checkpoint",
    ),
    ForeignKeys(("task.async.commit",), "remove it; commits are always asynchronous"),
    ForeignKeys(("task.backup.manager",), "use `stores.backup.factories`"),
    ForeignKeys(("task.restore.manager",), "use `stores.restore.factories`"),
    ForeignKeys(
        ("task.callback.timeout.ms", "task.watermark.*"),
        "remove it; messages are processed in batches, without callbacks",
    ),
    ForeignKeys(
        (
            "task.checkpoint.factory",
            "task.checkpoint.system",
            "task.checkpoint.path",
            "task.checkpoint.replication.factor",
            "task.checkpoint.segment.bytes",
            "task.checkpoint.max.message.bytes",
            "job.checkpoint.validation.enabled",
        ),
        "remove it; checkpoints are in a log under `job.root`",
    ),
    ForeignKeys(
        ("task.chooser.class",),
        "remove it; `streams.<id>.samza.priority` and `streams.<id>.samza.bootstrap` say which input is read first",
    ),
    ForeignKeys(
        ("task.command.class", "task.java.home", "task.opts"),
        "tasks run in Python, and Spark starts the processes: use `spark.*`, such as `spark.executor.extraJavaOptions`",
    ),
    ForeignKeys(
        ("task.commit.skip.commit.*",),
        "remove it; a failed commit ends the run, and a start continues from the last checkpoint",
    ),
    ForeignKeys(("task.consumer.batch.size",), "remove it; `job.batch.max.messages` bounds a batch"),
    ForeignKeys(("task.ignored.exceptions", "task.drop.*"), "use `task.dead.letter.stream`"),
    ForeignKeys(("task.inputs",), 'remove it; the application names its inputs: `app.input("system.stream")`'),
    ForeignKeys(
        ("task.live.checkpoint.max.age",),
        "remove it; a start begins with the newest checkpoint, in the preferred version that it has",
    ),
    ForeignKeys(("task.log4j.*",), "remove it; `job.log.format` chooses the form of the log"),
    ForeignKeys(
        ("task.max.concurrency", "job.container.thread.pool.size"),
        "remove it; a task processes one message at a time, and Spark runs the tasks",
    ),
    ForeignKeys(
        ("task.poll.interval.ms", "task.max.idle.ms"),
        "use `job.batch.interval.ms`, the time that an idle job waits before it looks for new messages",
    ),
    ForeignKeys(
        ("task.transactional.state.*",), "remove it; state is always restored as of the checkpoint, with its offsets"
    ),
)


def samzas_answer(key: str) -> str | None:
    """The text that says what takes the place of a key of Samza; None for any other key."""
    return next((each.answer for each in SAMZA_KEYS if each.has(key)), None)


_PREFIX = "spark.sql.streaming."

SPARK_KEYS = (
    ForeignKeys(
        (f"{_PREFIX}stateStore.*",),
        "Penstock keeps the state: use `state.changelog.enabled` and `state.snapshot.interval.commits`",
    ),
    ForeignKeys(
        (f"{_PREFIX}minBatchesToRetain", f"{_PREFIX}maxBatchesToRetainInMemory"),
        "use `task.checkpoint.retained`, the checkpoints that are kept and can be started from",
    ),
    ForeignKeys((f"{_PREFIX}checkpointLocation",), "use `job.root`, under which checkpoints and state are kept"),
    ForeignKeys(
        (f"{_PREFIX}pollingDelay",),
        "use `job.batch.interval.ms`, the time that an idle job waits before it looks for new messages",
    ),
    ForeignKeys(
        ("spark.streaming.backpressure.*", "spark.streaming.kafka.*"),
        "use `job.batch.max.messages` and `job.batch.max.bytes`",
    ),
)


def sparks_answer(key: str) -> str | None:
    """The description of a key of Spark's queries, with what takes its place; None for any other key."""
    found = next((each for each in SPARK_KEYS if each.has(key)), None)
    if found is None:
        return None
    what = "state store" if found is SPARK_KEYS[0] else "streaming queries, and a job is none"
    return f"is a key of Spark's {what}: {found.answer}"


def foreign(text: str) -> str | None:
    """The advice for a key of Samza or Spark that Penstock does not have; None for any other text."""
    if (sparks := sparks_answer(text)) is not None:
        return sparks
    answer = samzas_answer(text)
    return None if answer is None else f"is a key of Samza: {answer}"
