"""Options with which the JVMs of tests start quickly, and an archive of the classes that Spark loads.

`make test` has the archive made once, next to the interpreter. A JVM that it does not fit, such as one of another
version, starts without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For JVMs that live for seconds: no second compiler, no collector threads, no file of counters."""
_QUIET = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:cds=off -Xlog:cds+dynamic=off"
_WITH_ARCHIVE = f"{_QUIET} -XX:SharedArchiveFile={ARCHIVE}"


def use() -> None:
    """Drivers' JVMs that are started from here on have these options."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())


def java_options() -> str:
    """The options, for a JVM of Spark that is no driver's."""
    return f"{_SMALL} {_WITH_ARCHIVE}" if _has_archive() else _SMALL


def _has_archive() -> bool:
    return ARCHIVE.exists() and ARCHIVE.stat().st_size > 0


def main() -> None:
    """Run a small job, and keep the classes that its JVM has loaded."""
    from penstock.spark.session import gateway
    from tests.support.apps.job_app import totals_app
    from tests.support.jobs.home import DEADLINE_S, Home

    if any(letter.isspace() for letter in str(ARCHIVE)):
        ARCHIVE.touch()  # Spark's scripts part options at blanks: such a path cannot be given to a JVM
        return
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder) / ARCHIVE.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"{_QUIET} -XX:ArchiveClassesAtExit={made}"
        home = Home(Path(folder) / "home")
        home.publish(100)
        job = totals_app().run({**home.config, "spark.master": "local[2]"}, until="latest")
        assert job.await_termination(DEADLINE_S)
        jvm = gateway._CurrentGateway.jvm
        assert jvm is not None
        assert jvm.process.stdin is not None
        jvm.process.stdin.close()  # which ends it
        jvm.process.wait(DEADLINE_S)
        if made.exists():
            made.rename(ARCHIVE)
        else:
            ARCHIVE.touch()  # a JVM that makes none; it is not asked again


if __name__ == "__main__":
    main()
