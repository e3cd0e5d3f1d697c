"""Answers to keys of Samza and Spark that Penstock does not have, for users who bring a configuration along."""

from __future__ import annotations

import re

_FACTORIES = "a list of names in the order of preference"

_ANSWERS: tuple[tuple[str, str], ...] = (
    (r"stores\.(?P<store>.+)\.restore\.factory", "use `stores.{store}.restore.factories`, " + _FACTORIES),
    (r"stores\.(?P<store>.+)\.backup\.factory", "use `stores.{store}.backup.factories`, " + _FACTORIES),
    (r"task\.(backup|restore)\.manager", "use `stores.backup.factories` and `stores.restore.factories`"),
    (
        r"task\.transactional\.state\.(checkpoint|restore)\.enabled|task\.transactional\.state\.retain\.existing\.state",
        "state is always restored as of the checkpoint, with its offsets. Remove the key",
    ),
    (r"task\.inputs", 'the application names its inputs: `app.input("system.stream")`. Remove the key'),
    (
        r"job\.container\.commit\.thread\.pool\.max\.size",
        "the pool grows with a container's tasks; `job.container.commit.thread.pool.size` is the least",
    ),
    (r"(task\.)?max\.commit\.delay(\.ms)?", "use `task.commit.max.delay.ms`"),
    (r"task\.async\.commit", "commits are always asynchronous. Remove the key"),
    (
        r"task\.commit\.skip\.commit\..+",
        "a failed commit ends the run, and a start continues from the last checkpoint. Remove the key",
    ),
    (
        r"task\.watermark\..+|task\.callback\.(?!drain\.|watermark\.).+",
        "messages are processed in batches, without callbacks. Remove the key",
    ),
    (
        r"task\.max\.concurrency|job\.container\.thread\.pool\.size",
        "a task processes one message at a time; Spark runs the tasks",
    ),
    (r"task\.ignored\.exceptions|task\.drop\..+", "use `task.dead.letter.stream`"),
    (
        (
            r"task\.checkpoint\.(factory|system|path|replication\.factor|segment\.bytes|max\.message\.bytes)"
            r"|job\.checkpoint\.validation\.enabled"
        ),
        "checkpoints are in a log under `job.root`. Remove the key",
    ),
    (
        r"task\.class|app\.class|app\.(api\.type|run\.id)",
        "`penstock run module:object` names the application. Remove the key",
    ),
    (r"app\.name", "use `job.name`"),
    (r"app\.id", "use `job.id`"),
    (
        r"app\.runner\.class|app\.mode|app\.processor\.id(\.generator\.class)?|app\.main\.class|app\.main\.args",
        "Spark runs the job. Remove the key",
    ),
    (
        r"spark\.sql\.streaming\.stateStore\.rocksdb\.changelogCheckpointing\.enabled",
        "Penstock keeps the state, not Spark's state store: use `state.changelog.enabled`",
    ),
    (
        r"spark\.sql\.streaming\.stateStore\.minDeltasForSnapshot",
        "Penstock keeps the state, not Spark's state store: use `state.snapshot.interval.commits`",
    ),
    (
        r"spark\.sql\.streaming\.stateStore\..+",
        "Penstock keeps the state, not Spark's state store. Remove the key",
    ),
    (r"job\.changelog\.system", "name each stream with its system: `stores.<name>.changelog`"),
    (
        r"stores\.(?P<store>[^.]+)\.changelog\.kafka\..+",
        (
            "give a topic in Kafka its other settings yourself; a changelog elsewhere is compacted by what "
            "`task.checkpoint.retained` keeps. Remove the key"
        ),
    ),
    (
        r"stores\.(?P<store>.+)\.(key|msg)\.serde|serializers\.registry\..+",
        "the application declares serdes: `app.store(name, key=..., value=...)`. Remove the key",
    ),
    (
        r"stores\.(?P<store>.+)\.side\.inputs\.processor\.serialized\.instance",
        (
            "the application gives the processor, `app.store(name, side_inputs=[...], processor=...)`; or "
            "`stores.{store}.side.inputs.processor.factory` names a class"
        ),
    ),
    (
        r"stores\.(?P<store>.+)\.rocksdb\.ttl\.ms",
        'the application declares how long entries live: `app.store("{store}", ttl_ms=...)`. Remove the key',
    ),
    (
        r"stores\.(?P<store>.+)\.(write\.batch\.size|disallow\.large\.messages|clean\.on\.container\.start)",
        "changes are gathered up to `stores.{store}.rocksdb.write.buffer.bytes`. Remove the key",
    ),
    (
        r"blob\.store\..+",
        "the backend `blob` keeps its objects under `state.backends.blob.root`, else `job.root`. Remove the key",
    ),
    (r"job\.systemstreampartition\.(grouper|matcher)\..+", "task i reads partition i of every input. Remove the key"),
    (r"job\.non-logged\.store\.base\.dir", "use `job.logged.store.base.dir`: every store is backed up"),
    (r"(job|startpoint)\..*(coordinator|metadata\.store)\..+", "metadata is under `job.root`. Remove the key"),
    (
        r"job\.(factory\.class|default\.system)",
        "Spark runs the job, and streams are named `system.stream`. Remove the key",
    ),
    (
        r"systems\..+\.samza\.(key|msg)\.serde|streams\..+\.samza\.(key|msg)\.serde",
        "the application declares serdes. Remove the key",
    ),
    (
        r"(systems|streams)\..+\.samza\.(delete\.committed\.messages|intermediate)",
        "streams between stages are Spark's shuffles, and inputs are never deleted. Remove the key",
    ),
    (r"(yarn|cluster-manager)\..+|job\.container\.count", "Spark gives the containers: use `spark.*`"),
    (
        r"metrics\.(?!prometheus\.|reporter\.snapshot\.(stream|interval)).+",
        "`metrics.reporter.snapshot.stream` and `metrics.prometheus.port` are all that exports metrics. Remove the key",
    ),
)


def answer(key: str) -> str | None:
    """Advice for a key that has no effect here; None for any other text.

    Example:
        >>> answer("stores.totals.restore.factory")
        'use `stores.totals.restore.factories`, a list of names in the order of preference'
    """
    for pattern, text in _ANSWERS:
        if match := re.fullmatch(pattern, key):
            return text.format(**match.groupdict())
    return None
