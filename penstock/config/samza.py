"""Samza's keys that Penstock does not have, each with what takes its place. docs/samza.md has them as a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class SamzaKeys:
    """Some keys of Samza that have one answer. `<name>` in a key is any name, and `*` any text."""

    keys: tuple[str, ...]
    answer: str

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(re.sub(r"<\w+>|\\\*", ".+", re.escape(key)) for key in self.keys))

    def has(self, key: str) -> bool:
        return self._pattern.fullmatch(key) is not None


SAMZA_KEYS = (
    SamzaKeys(
        ("app.class", "app.api.type", "task.class"),
        "remove it; `penstock run module:object` names the application",
    ),
    SamzaKeys(("app.name",), "use `job.name`"),
    SamzaKeys(("app.id",), "use `job.id`"),
    SamzaKeys(
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
    SamzaKeys(
        ("blob.store.*",),
        "remove it; the backend `blob` keeps its objects under `state.backends.blob.root`, else `job.root`",
    ),
    SamzaKeys(("job.autosizing.*",), "use Spark's dynamic allocation, `spark.dynamicAllocation.*`"),
    SamzaKeys(("job.changelog.system",), "name each stream with its system: `stores.<name>.changelog`"),
    SamzaKeys(
        ("job.config.rewriters", "job.config.rewriter.*"),
        "remove it; to read all streams of a pattern, use `app.input(..., pattern=True)`",
    ),
    SamzaKeys(
        ("job.container.commit.thread.pool.*", "job.container.restore.thread.pool.*"),
        "remove it; the pools have two threads for each task, and at most 64",
    ),
    SamzaKeys(
        ("job.container.count", "cluster-manager.*", "yarn.*"),
        "Spark gives the containers: use `spark.*`, such as `spark.executor.instances`",
    ),
    SamzaKeys(
        ("job.coordinator.*", "job.coordination.*", "startpoint.metadata.store.*"),
        "remove it; metadata is under `job.root`",
    ),
    SamzaKeys(("job.default.system",), "remove it; streams are named `system.stream`"),
    SamzaKeys(
        ("job.jmx.enabled", "metrics.reporters", "metrics.reporter.<name>.class"),
        "`metrics.reporter.snapshot.stream` and `metrics.prometheus.port` are all that exports metrics",
    ),
    SamzaKeys(
        ("metrics.reporter.<name>.stream", "metrics.reporter.<name>.interval"),
        "use `metrics.reporter.snapshot.stream` and `metrics.reporter.snapshot.interval`",
    ),
    SamzaKeys(("job.non-logged.store.base.dir",), "use `job.logged.store.base.dir`: every store is backed up"),
    SamzaKeys(
        ("job.systemstreampartition.*", "task.name.grouper.factory"),
        "remove it; task i reads partition i of every input",
    ),
    SamzaKeys(
        ("serializers.registry.*", "stores.*.serde", "streams.*.samza.*.serde", "systems.*.samza.*.serde"),
        "remove it; the application declares serdes, as in `app.store(name, key=..., value=...)`",
    ),
    SamzaKeys(("stores.<name>.changelog.kafka.*",), "give the topic its other settings yourself"),
    SamzaKeys(
        ("stores.<name>.container.cache.size.bytes",),
        "use `stores.<name>.rocksdb.block.cache.bytes`, a size for each task",
    ),
    SamzaKeys(
        ("stores.<name>.container.write.buffer.size.bytes",),
        "use `stores.<name>.rocksdb.write.buffer.bytes`, a size for each task",
    ),
    SamzaKeys(
        ("stores.<name>.rocksdb.ttl.ms",),
        "remove it; the application declares how long entries live: `app.store(name, ttl_ms=...)`",
    ),
    SamzaKeys(
        ("stores.<name>.side.inputs.processor.serialized.instance",),
        "use `app.store(name, side_inputs=[...], processor=...)`, or `stores.<name>.side.inputs.processor.factory`",
    ),
    SamzaKeys(
        (
            "stores.<name>.write.batch.size",
            "stores.<name>.disallow.large.messages",
            "stores.<name>.drop.large.messages",
            "stores.<name>.clean.on.container.start",
        ),
        "remove it; changes are gathered up to `stores.<name>.rocksdb.write.buffer.bytes`",
    ),
    SamzaKeys(("streams.<id>.samza.broadcast",), "use `task.broadcast.inputs`"),
    SamzaKeys(
        ("streams.<id>.samza.delete.committed.messages", "systems.<name>.samza.delete.committed.messages"),
        "remove it; inputs are never deleted",
    ),
    SamzaKeys(("streams.<id>.samza.intermediate",), "remove it; streams between stages are Spark's shuffles"),
    SamzaKeys(
        ("streams.<id>.samza.physical.name", "streams.<id>.samza.system"),
        "remove it; the id is `system.stream`, the name of the system and of the stream in it",
    ),
    SamzaKeys(
        ("systems.<name>.samza.fetch.threshold", "systems.<name>.samza.fetch.threshold.bytes"),
        "use `job.batch.max.messages` and `job.batch.max.bytes`",
    ),
    SamzaKeys(
        ("systems.<name>.samza.offset.default",),
        "use `systems.<name>.default.stream.samza.offset.default`, the name that Samza prefers, too",
    ),
    SamzaKeys(("systems.<name>.streams.<stream>.samza.*",), "use the keys `streams.<name>.<stream>.samza.*`"),
    SamzaKeys(("task.async.commit",), "remove it; commits are always asynchronous"),
    SamzaKeys(("task.backup.manager",), "use `stores.backup.factories`"),
    SamzaKeys(("task.restore.manager",), "use `stores.restore.factories`"),
    SamzaKeys(
        ("task.callback.timeout.ms", "task.watermark.*"),
        "remove it; messages are processed in batches, without callbacks",
    ),
    SamzaKeys(
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
    SamzaKeys(
        ("task.chooser.class",),
        "remove it; `streams.<id>.samza.priority` and `streams.<id>.samza.bootstrap` say which input is read first",
    ),
    SamzaKeys(
        ("task.command.class", "task.java.home", "task.opts"),
        "tasks run in Python, and Spark starts the processes: use `spark.*`, such as `spark.executor.extraJavaOptions`",
    ),
    SamzaKeys(
        ("task.commit.skip.commit.*",),
        "remove it; a failed commit ends the run, and a start continues from the last checkpoint",
    ),
    SamzaKeys(("task.consumer.batch.size",), "remove it; `job.batch.max.messages` bounds a batch"),
    SamzaKeys(("task.ignored.exceptions", "task.drop.*"), "use `task.dead.letter.stream`"),
    SamzaKeys(("task.inputs",), 'remove it; the application names its inputs: `app.input("system.stream")`'),
    SamzaKeys(
        ("task.live.checkpoint.max.age",),
        "remove it; a start begins with the newest checkpoint, in the preferred version that it has",
    ),
    SamzaKeys(("task.log4j.*",), "remove it; `job.log.format` chooses the form of the log"),
    SamzaKeys(
        ("task.max.concurrency", "job.container.thread.pool.size"),
        "remove it; a task processes one message at a time, and Spark runs the tasks",
    ),
    SamzaKeys(
        ("task.poll.interval.ms", "task.max.idle.ms"),
        "use `job.batch.interval.ms`, the time that an idle job waits before it looks for new messages",
    ),
    SamzaKeys(
        ("task.transactional.state.*",), "remove it; state is always restored as of the checkpoint, with its offsets"
    ),
)


def samzas_answer(key: str) -> str | None:
    """The text that says what takes the place of a key of Samza; None for any other key."""
    return next((each.answer for each in SAMZA_KEYS if each.has(key)), None)
