"""What every benchmark needs: a side in a process of its own, what it uses, the machine, a table, a JSON file."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DRIVER_MEMORY = "2g"
"""The JVM's heap limit, the same on every side."""
CONTENTION_SHARE = 0.1
_SAMPLE_SECONDS = 0.5
_PACKAGES = ("penstock", "pyspark", "pyarrow", "numpy", "orjson", "rocksdict", "protobuf")

console = Console(width=None if sys.stdout.isatty() else 130)


class SideFailedError(RuntimeError):
    """A side's process ended without a result. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The moment at which the processes of a side held the most memory together, in bytes of PSS.

    PSS (proportional set size) counts a page shared by n processes as 1/n in each, so that forked Python workers are
    not counted for what they share.
    """

    total_bytes: int = 0
    by_kind: Mapping[str, int] = field(default_factory=dict)
    """`jvm`, `spark workers`, `containers`, `driver`: at that same moment."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of a side used from their start to their end."""

    peak: MemoryPeak
    cpu_seconds: Mapping[str, float]
    """By kind of process, as of the last sample of each process."""
    others_cpu_seconds: float
    """What other programs used meanwhile: contention. Neither the benchmark itself is one nor what it has started, such
    as a broker; processes too short to be sampled are."""
    series: tuple[tuple[float, Mapping[str, float]], ...] = field(repr=False)
    """(epoch seconds, processor seconds by kind so far) of every sample."""

    def cpu_between(self, start: float, end: float) -> dict[str, float]:
        """Processor seconds by kind between two moments, epoch seconds; as exact as samples are close."""
        first, last = self._at(start), self._at(end)
        return {kind: seconds - first.get(kind, 0.0) for kind, seconds in last.items()}

    def _at(self, moment: float) -> Mapping[str, float]:
        times = [time for time, _ in self.series]
        return self.series[max(0, bisect_right(times, moment) - 1)][1] if self.series else {}


@dataclass(frozen=True, slots=True)
class SideRun:
    """What came of one run of a side."""

    result: dict[str, Any]
    usage: Usage
    seconds: float
    """From the start of the process to its end."""


class UsageSampler:
    """Watches all processes of a session, from a thread of its own, until it is closed."""

    def __init__(self, session: int) -> None:
        """`session` is the session's id: the pid of a process that was started with `start_new_session`."""
        self._session = session
        self._stop = threading.Event()
        self._peak = MemoryPeak()
        self._cpu: dict[int, tuple[str, float]] = {}
        """Process id -> kind, processor seconds so far."""
        self._beside: dict[int, tuple[float, float]] = {}
        """The benchmark's own processes of other sessions: processor seconds at the beginning, and so far."""
        self._there = {process.pid for process in _own_processes()}
        """Those of the benchmark's own processes that had begun before."""
        self._series: list[tuple[float, Mapping[str, float]]] = []
        self._busy_before = _machine_busy_seconds()
        self._thread = threading.Thread(target=self._run, name="usage-sampler", daemon=True)
        self._thread.start()

    def close(self) -> Usage:
        """Stop, and say what was used."""
        self._stop.set()
        self._thread.join()
        by_kind = self._cpu_by_kind()
        beside = sum(last - first for first, last in self._beside.values())
        others = _machine_busy_seconds() - self._busy_before - sum(by_kind.values()) - beside
        return Usage(self._peak, by_kind, max(0.0, others), tuple(self._series))

    def _run(self) -> None:
        while True:
            self._sample()
            if self._stop.wait(_SAMPLE_SECONDS):
                return

    def _sample(self) -> None:
        kinds: dict[str, int] = {}
        for process in session_processes(self._session):
            try:
                kind = process_kind(process, self._session)
                if kind is None:
                    continue
                size = int(process.memory_full_info().pss)
                times = process.cpu_times()
            except psutil.Error:
                continue  # it has ended
            kinds[kind] = kinds.get(kind, 0) + size
            self._cpu[process.pid] = (kind, times.user + times.system)
        self._sample_beside()
        self._series.append((time.time(), self._cpu_by_kind()))
        total = sum(kinds.values())
        if total > self._peak.total_bytes:
            self._peak = MemoryPeak(total, kinds)

    def _sample_beside(self) -> None:
        for process in _own_processes():
            try:
                if os.getsid(process.pid) == self._session:
                    continue
                times = process.cpu_times()
            except (OSError, psutil.Error):
                continue  # it has ended
            spent = times.user + times.system
            first, _ = self._beside.get(process.pid, (spent if process.pid in self._there else 0.0, 0.0))
            self._beside[process.pid] = (first, spent)

    def _cpu_by_kind(self) -> dict[str, float]:
        by_kind: dict[str, float] = {}
        for kind, seconds in self._cpu.values():
            by_kind[kind] = by_kind.get(kind, 0.0) + seconds
        return by_kind


def _own_processes() -> list[psutil.Process]:
    """The benchmark itself, and what it has started."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def session_processes(session: int) -> list[psutil.Process]:
    """Every process of a session: Spark's JVM, its workers and the containers stay in that of the side."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                found.append(psutil.Process(pid))
        except (OSError, psutil.Error):
            continue
    return found


def _machine_busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def process_kind(process: psutil.Process, session: int) -> str | None:
    """What sort of process it is; None for one that is not to be counted, or is about to end."""
    if process.pid == session:
        return "driver"
    command = process.cmdline()
    if not command:
        return None
    if _is_java(process):
        # A JVM that starts a command is for a moment two processes with one memory. An executor is a JVM that another
        # one started, with another command line.
        parent = process.parent()
        starts = Path(process.exe()).name == "jspawnhelper" or (parent is not None and parent.cmdline() == command)
        return None if starts else "jvm"
    if Path(command[0]).name == "sh":  # around a container, for its exit status
        return None
    return "containers" if "penstock.container" in command else "spark workers"


def _is_java(process: psutil.Process) -> bool:
    return Path(process.exe()).name in ("java", "jspawnhelper")


def run_side(target: str, parameters: Mapping[str, Any], work: Path, timeout_s: float = 3600) -> SideRun:
    """Run `module:function` in a fresh process and session; its output goes to a log in `work`.

    Raises:
        SideFailedError: it failed or took longer than `timeout_s`.
    """
    work.mkdir(parents=True, exist_ok=True)
    given, result, log = (work / name for name in ("parameters.json", "result.json", "log.txt"))
    given.write_bytes(orjson.dumps(parameters))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.side", target, str(given), str(result)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=work, start_new_session=True,
        )  # fmt: skip
        sampler = UsageSampler(process.pid)
        try:
            status: int | str = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = f"none after {timeout_s:.0f} s"
        finally:
            usage = sampler.close()
            _end_session(process)
    if status != 0:
        raise SideFailedError(f"{target} failed (exit status {status}). The end of {log}:\n{_tail(log)}")
    return SideRun(orjson.loads(result.read_bytes()), usage, time.monotonic() - started)


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does: the side that runs is killed and its folder removed."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill what the side left running, itself included."""
    for left in session_processes(process.pid):
        try:
            left.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
    process.wait()


def _tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def machine() -> dict[str, Any]:
    """The machine and the versions a result belongs to."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _java_version() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return "unknown"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return (done.stderr.splitlines() or ["unknown"])[0]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_machine(facts: Mapping[str, Any]) -> str:
    """One line for people."""
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    memory = facts["memory_bytes"] / 2**30
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {memory:.0f} GiB; Python {facts['python']}, {facts['java']}; "
        f"{packages}"
    )


def run_facts(run: SideRun) -> dict[str, Any]:
    """What a run used, for the JSON."""
    usage = run.usage
    return {
        "seconds": round(run.seconds, 2),
        "peak": asdict(usage.peak),
        "cpu_seconds": _rounded(usage.cpu_seconds),
        "others_cpu_seconds": round(usage.others_cpu_seconds, 2),
    }


def contention(runs: Mapping[str, Sequence[Mapping[str, Any]]], cores: int) -> list[str]:
    """What to say of runs during which other programs took more than CONTENTION_SHARE of the machine; by side."""
    found = []
    for name, own in runs.items():
        shares = [run["others_cpu_seconds"] / (run["seconds"] * cores) for run in own]
        if max(shares) > CONTENTION_SHARE:
            found.append(f"{name}: {', '.join(f'{share:.0%}' for share in shares)}")
    return found


def warn_of_contention(found: Sequence[str]) -> None:
    """Print it."""
    if found:
        console.print("Not to be quoted: other programs took this share of the machine, round by round")
        for line in found:
            console.print(f"  {line}")


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}


def megabytes(size: float) -> str:
    """`1,234 MB`, of 2**20 bytes."""
    return f"{size / 2**20:,.0f} MB"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table; all columns but the first are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result for people and programs to read, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n")
    temporary.replace(path)
    console.print(f"written to {path}")


def command_line(name: str, text: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark, `--json` among them; `text` is its module's docstring."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(text or "").split("\n")[0])
    parser.add_argument("--json", type=Path, default=RESULTS / f"{name}.json")
    return parser


def positive_options(parser: argparse.ArgumentParser, given: Sequence[str] | None, *names: str) -> argparse.Namespace:
    """The options as given; those with these names are numbers, or lists of numbers, of at least 1."""
    options = parser.parse_args(given)
    for name in names:
        value = getattr(options, name)
        if min(value if isinstance(value, list) else [value]) < 1:
            parser.error("all numbers must be at least 1")
    return options


def begin() -> dict[str, Any]:
    """What each benchmark begins with. Returns the facts of the machine."""
    end_on_sigterm()
    facts = machine()
    console.print(describe_machine(facts))
    return facts


def finish(
    path: Path, name: str, facts: Mapping[str, Any], measured: Mapping[str, Sequence[Mapping[str, Any]]], **result: Any
) -> None:
    """What each benchmark ends with: a warning if other programs ran beside it, and the JSON."""
    contended = contention(measured, facts["cores"])
    warn_of_contention(contended)
    write_json(path, {"benchmark": name, "machine": facts, **result, "contention": contended})
