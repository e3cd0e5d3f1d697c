"""The classes that Spark's JVM loads, as an archive from which the JVMs of tests start with half of the work.

`make test` has it made once, next to the interpreter. A JVM that it does not fit, such as one of another version,
starts without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"
_QUIET = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:cds=off -Xlog:cds+dynamic=off"
_WITH_ARCHIVE = f"{_QUIET} -XX:SharedArchiveFile={ARCHIVE}"


def use() -> None:
    """Drivers' JVMs that are started from here on begin with the archive, if there is one."""
    if _has_archive():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", _WITH_ARCHIVE)


def java_options() -> str:
    """What other JVMs of Spark need in order to start quickly."""
    return f"-XX:TieredStopAtLevel=1 {_WITH_ARCHIVE if _has_archive() else ''}".strip()


def _has_archive() -> bool:
    return ARCHIVE.exists() and ARCHIVE.stat().st_size > 0


def main() -> None:
    """Run a small job, and keep the classes that its JVM has loaded."""
    from penstock.spark.session import gateway
    from tests.support.apps.job_app import totals_app
    from tests.support.jobs.home import DEADLINE_S, Home

    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder) / ARCHIVE.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"{_QUIET} -XX:ArchiveClassesAtExit={made}"
        home = Home(Path(folder) / "home")
        home.publish(100)
        job = totals_app().run({**home.config, "spark.master": "local[2]"}, until="latest")
        assert job.await_termination(DEADLINE_S)
        jvm = gateway._Current.jvm
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
