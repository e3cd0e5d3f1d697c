"""The time in which Spark's RocksDB state store loads a version, from its log.

The metrics of a batch do not say it: an aggregation asks for its store twice, and the second load, which finds the
version there, is the one that is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LOGGER = "org.apache.spark.sql.execution.streaming.state"
"""RocksDB's logger has the store's id in its name, so that only the package can be named."""
_LINE = re.compile(r"(\d+) RocksDB .*\]: (Loading \d+ with|[Rr]eplaying changelog from|Loaded \d+)")


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a version."""

    load_ms: int
    """All of it, until the store can be read."""
    snapshot_ms: int
    """The part until the snapshot's files were there."""
    replayed: int
    """Changelogs."""


def log_settings(folder: Path, logger: str = _LOGGER, level: str = "info") -> tuple[dict[str, str], Path]:
    """Make a new JVM log what a logger says, with the milliseconds, to a file: Spark's settings, and the file."""
    log, properties = folder / "jvm.log", folder / "log4j2.properties"
    lines = {
        "rootLogger.level": "error",
        "rootLogger.appenderRef.file.ref": "file",  # without an appender, Spark would put its own settings in place
        "appender.file.type": "File",
        "appender.file.name": "file",
        "appender.file.fileName": log,
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{UNIX_MILLIS} %c{1}: %m%n",
        "logger.file.name": logger,
        "logger.file.level": level,
        "logger.file.additivity": "false",
        "logger.file.appenderRef.file.ref": "file",
    }
    properties.write_text("\n".join(f"{key}={value}" for key, value in lines.items()))
    return {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={properties}"}, log


def first_load(lines: Iterable[str]) -> Load:
    """The first load that was logged. Raises ValueError if there is none that came to its end."""
    began = snapshot = None
    replayed = 0
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        moment, what = int(match[1]), match[2]
        if what.startswith("Loading"):
            began, snapshot, replayed = moment, None, 0
        elif what.startswith("Replaying"):
            snapshot = moment
        elif what.startswith("replaying"):
            replayed += 1
        elif began is not None:
            return Load(moment - began, (moment if snapshot is None else snapshot) - began, replayed)
    raise ValueError("Spark logged no load of a state store")
