"""Keys of Spark's streaming queries that mean nothing to a job, each with what takes its place. docs/samza.md has them
as a table."""

from __future__ import annotations

from penstock.config.samza import ForeignKeys

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
