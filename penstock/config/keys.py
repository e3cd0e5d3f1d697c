"""Finds the declaration of a key, and for a mistaken key the nearest one that exists.

Keys that Penstock does not have are known as well, each with what takes its place: Samza's, and those of Spark's
streaming queries that mean nothing to a job. docs/samza.md has them as tables.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

from penstock.api.ssp import SystemStream
from penstock.base.plugins import OUTSIDE_WINGS, from_outside
from penstock.config.key import AbsentDefault, AnyKey, DerivedDefault, Key, Settings
from penstock.config.settings import KEYS, OtherSettings, StoreSettings, SystemKeys
from penstock.config.topics import Topic
from penstock.config.values.kinds import ValueKind
from penstock.errors import ConfigError


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


_APPLICATION, _SPARK = OtherSettings.application, OtherSettings.spark
_NO_OPTION = re.compile(
    r"systems\.[^.]+(\.samza(\..*)?|\.streams\..+\.samza\..+|\.default(\.stream(\.samza(\..*)?)?)?)?\.?"
)
"""Keys of a system that are not options: they would be Samza's, for all systems."""
_RUN_ID = re.compile(r"app[._-]*run[._-]*id", re.IGNORECASE)
_NEAR = 0.75
_SAME_GROUP = 0.8
_SOME_WORDS, _MOST_WORDS = 0.4, 0.5
_TELLING = 8
"""The most keys that have a word which tells a key from others."""
_NAMES = {
    "stores.": (
        r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
        ("a store's name is made of A-Za-z0-9_.-, not beginning with a dot or dash"),
    ),
    "systems.": (r"[A-Za-z0-9_-]+", "a system's name is made of A-Za-z0-9_- and has no dots"),
}


@dataclass(frozen=True, slots=True)
class Match:
    """A key found in the table; `subject` replaces the placeholder."""

    key: AnyKey
    subject: str


@cache
def describe() -> tuple[AnyKey, ...]:
    """Every key: Penstock's in the order of their declaration, then those of wings from outside. Raises ConfigError if
    such a wing is refused."""
    return (*KEYS, *(key for wing in from_outside(OUTSIDE_WINGS).values() for key in keys_of(wing.keys)))


def keys_of(group: type[Settings] | None) -> Iterator[AnyKey]:
    """The keys that a class of settings declares itself. None: there is no such class."""
    return (value for value in vars(group or Settings).values() if isinstance(value, Key))


def faults_of(group: object, others: Mapping[AnyKey, str]) -> Iterator[str]:
    """The faults of the keys that a wing declares, each as it follows the wing's name. `others`: the keys that there
    are already, each with its owner."""
    if not (isinstance(group, type) and issubclass(group, Settings)):
        yield f"has {group!r} as its `keys`, which is no subclass of Settings"
        return
    taken = dict(others)
    for key in keys_of(group):
        for fault in (_fault_of_kind(key), _fault_of_default(key)):
            if fault:
                yield f"declares the key `{key.name}` with {fault}"
        for other, owner in taken.items():
            if _meets(key, other):
                yield (
                    f"declares the key `{key.name}`, which cannot be told from `{other.name}` of {owner}: give it "
                    "another name"
                )
        taken[key] = "the same wing"


def _fault_of_kind(key: AnyKey) -> str:
    for value, kind, such in ((key.kind, ValueKind, "`Number()`"), (key.topic, Topic, "`Topic.JOB`")):
        if not isinstance(value, kind):
            return f"{value!r}, which is no {kind.__name__}, such as {such}"
    return ""


def _fault_of_default(key: AnyKey) -> str:
    if isinstance(key.otherwise, (Key, AbsentDefault, DerivedDefault)) or not isinstance(key.kind, ValueKind):
        return ""
    if key.default is None:
        return f"the default {key.otherwise!r}: a default is the text that a user would write"
    try:
        key.kind.read(key.default.replace("<home>", "/"))
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        return f"the default `{key.default}`{reason}, which is not {key.kind.expected}"
    return ""


def _meets(one: AnyKey, other: AnyKey) -> bool:
    """True if a text could be meant for both keys."""
    return any(_stands_for(a, b.full("x")) for a, b in ((one, other), (other, one)))


def _stands_for(key: AnyKey, text: str) -> bool:
    """True if a text is the key, with any name in the place of its placeholder."""
    subject = text[len(key.prefix) : len(text) - len(key.suffix)]
    return text == key.name or (key.is_pattern and subject != "" and text == key.full(subject))


@cache
def exact() -> dict[str, AnyKey]:
    """The keys without a placeholder, by name."""
    return {key.name: key for key in describe() if not key.is_pattern}


@cache
def patterns() -> list[AnyKey]:
    """The keys with a placeholder, those with the longest ending first."""
    return sorted((key for key in describe() if key.is_pattern), key=lambda key: len(key.suffix), reverse=True)


@lru_cache(1024)
def find(text: str) -> Match | None:
    """The declaration of a key, or None. Names may contain dots: the longest known ending wins."""
    if text in exact():
        return Match(exact()[text], "")
    for key in patterns():
        subject = text[len(key.prefix) : len(text) - len(key.suffix)]
        if _stands_for(key, text) and not _is_other(key, subject, text):
            return Match(key, subject)
    return None


def _is_other(key: AnyKey, subject: str, text: str) -> bool:
    """True if a text has the form of the key and is not meant for it."""
    if key is SystemKeys.option:
        return _NO_OPTION.fullmatch(text) is not None
    if key is SystemKeys.path:
        return "." in subject  # an option, such as one of a client
    if key is StoreSettings.factory:
        return foreign(text) is not None
    return key in (_APPLICATION, _SPARK) and (foreign(text) is not None or _RUN_ID.fullmatch(text) is not None)


def foreign(text: str) -> str | None:
    """The advice for a key of Samza or Spark that Penstock does not have; None for any other text."""
    if (sparks := sparks_answer(text)) is not None:
        return sparks
    answer = samzas_answer(text)
    return None if answer is None else f"is a key of Samza: {answer}"


def fault(match: Match) -> str:
    """The fault of the name inside the key; empty if there is none."""
    prefix = match.key.prefix
    if prefix == "streams.":
        try:
            SystemStream.parse(match.subject)
        except ConfigError as error:
            return str(error)
    pattern, rule = _NAMES.get(prefix, ("", ""))
    name = match.subject.partition(".")[0] if match.key is SystemKeys.option else match.subject
    return rule if pattern and not re.fullmatch(pattern, name) else ""


def is_section(text: str) -> bool:
    """True if known keys lie below this one, as below `job` or `stores.aircraft`."""
    if any(key.name.startswith(f"{text}.") for key in describe()):
        return True
    return any(text.startswith(key.prefix) and "." not in text[len(key.prefix) :] for key in patterns())


def nearest(text: str) -> str | None:
    """The known key most like this one, with its names; None if none is like it."""
    wanted = _normal(text)
    best, score = None, _NEAR
    for candidate in _candidates(text):
        ratio = _alike(wanted, _normal(candidate))
        if ratio > score:
            best, score = candidate, ratio
    known = [word for word in wanted.split(".") if 0 < _uses()[word] <= _TELLING]
    rarest = min(known, key=_uses().__getitem__, default=None)
    if rarest is None or (best is not None and rarest in _normal(best).split(".")):
        return best
    key, share = _with_word(rarest, set(wanted.split(".")))
    return key if share >= (_SOME_WORDS if best else _MOST_WORDS) else best


def _with_word(word: str, words: set[str]) -> tuple[str, float]:
    """The key with this word that has the most words of a text, and their share: `task.commit.ms` for
    `job.commit.interval.ms`. By letters alone, `job.batch.interval.ms` would be nearer."""
    found = [(len(words & own) / len(words | own), key) for key, own in _words().items() if word in own]
    share, key = max(found)
    return key, share


@cache
def _words() -> dict[str, set[str]]:
    return {key: set(_normal(key).split(".")) for key in exact()}


@cache
def _uses() -> Counter[str]:
    """Word → the number of keys that have it."""
    return Counter(word for words in _words().values() for word in words)


def _candidates(text: str) -> Iterator[str]:
    """Exact keys first; then every pattern, with each possible cut of the text as the name inside."""
    yield from exact()
    parts = text.split(".")
    for key in patterns():
        if key in (SystemKeys.option, _APPLICATION) or (key is _SPARK and not text.lower().startswith("spark")):
            continue  # any text would be like it
        if _alike(parts[0], key.prefix.partition(".")[0]) < _SAME_GROUP:
            continue  # the user's own words as the name would make it like the text
        ends = range(2, len(parts)) if key.suffix else [len(parts)]
        for end in ends:
            subject = ".".join(parts[1:end])
            ending = ".".join(parts[end:])
            if not subject or (key.prefix == "systems." and "." in subject):
                continue
            if not key.suffix or _alike(_normal(ending), _normal(key.suffix[1:])) > _NEAR:  # names alone prove nothing
                yield key.full(subject)


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def _normal(text: str) -> str:
    return re.sub(r"[-_.]+", ".", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", ".", text)).lower()
