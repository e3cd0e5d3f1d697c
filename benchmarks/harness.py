"""The harness of all benchmarks: sides in separate processes, what they use, tables, targets, and a file of results.

The process of a side is `python -m benchmarks.harness MODULE:FUNCTION PARAMETERS.json RESULT.json`: the function gets
the parameters as one dict and returns a dict, so that nothing of one side is left for the next.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import orjson
import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DRIVER_MEMORY = "2g"
"""The JVM's heap limit, the same on every side."""
CONTENTION_SHARE = 0.1
DEADLINE_S = 1800.0
LOG, RESULT = "log.txt", "result.json"
_SAMPLE_SECONDS = 0.5
_BESIDE = "beside"
_PACKAGES = ("penstock", "pyspark", "pyarrow", "numpy", "orjson", "rocksdict", "protobuf")

T = TypeVar("T")
Run = Mapping[str, Any]
"""The figures of one run of a side, and its resources."""

console = Console(width=None if sys.stdout.isatty() else 130)


class SideFailedError(RuntimeError):
    """A side's process ended without a result. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that the processes of a side used from their start to their end."""

    peak: Mapping[str, int]
    """Bytes of `jvm`, `spark workers`, `containers` and `driver` at the moment at which they held the most together, as
    PSS (proportional set size): a page that n processes share counts as 1/n in each, so that forked Python workers are
    not counted for what they share."""
    cpu_seconds: Mapping[str, float]
    """By kind of process, as of the last sample of each process."""
    others_cpu_seconds: float
    """Contention: processor seconds of other programs meanwhile. Neither the benchmark nor what it has started, such as
    a broker, is one; processes too short to be sampled are."""
    series: tuple[tuple[float, Mapping[str, float]], ...] = field(repr=False)
    """(epoch seconds, processor seconds by kind so far) of every sample."""

    def cpu_between(self, start: float, end: float) -> dict[str, float]:
        """Processor seconds by kind between two moments, epoch seconds; as exact as samples are close."""
        times = [moment for moment, _ in self.series]
        first, last = (self.series[max(0, bisect_right(times, moment) - 1)][1] for moment in (start, end))
        return {kind: seconds - first.get(kind, 0.0) for kind, seconds in last.items()}


@dataclass(frozen=True, slots=True)
class SideRun:
    result: dict[str, Any]
    usage: Usage
    seconds: float
    """From the start of the process to its end."""


class UsageSampler:
    """Watches all processes of a session, and beside them this one with all that it has started, from a thread of its
    own, until it is closed."""

    def __init__(self, session: int) -> None:
        """`session` is the pid of a process that was started with `start_new_session`."""
        self._session = session
        self._peak: Mapping[str, int] = {}
        self._cpu: dict[int, tuple[str, float, float]] = {}
        """Process id -> kind, processor seconds before this began, and so far."""
        self._series: list[tuple[float, Mapping[str, float]]] = []
        self._busy_before = _machine_busy_seconds()
        self._sample()
        self._sampling = ExitStack()
        self._sampling.enter_context(repeating(self._sample, _SAMPLE_SECONDS))

    def close(self) -> Usage:
        self._sampling.close()
        by_kind = self._cpu_by_kind()
        others = _machine_busy_seconds() - self._busy_before - sum(by_kind.values())
        by_kind.pop(_BESIDE)
        return Usage(self._peak, by_kind, max(0.0, others), tuple(self._series))

    def _sample(self) -> None:
        held = Counter[str]()
        for kind, process in (*processes_by_kind(self._session), *_processes_beside(self._session)):
            try:
                spent = float(sum(process.cpu_times()[:2]))
                if kind != _BESIDE:
                    held[kind] += int(process.memory_full_info().pss)
            except psutil.Error:
                continue  # it has ended
            # Processes beside the session that come after the first sample have begun meanwhile.
            before = spent if kind == _BESIDE and not self._series else 0.0
            _, before, _ = self._cpu.get(process.pid, (kind, before, spent))
            self._cpu[process.pid] = (kind, before, spent)
        self._peak = max(self._peak, held, key=lambda each: sum(each.values()))
        by_kind = self._cpu_by_kind()
        by_kind.pop(_BESIDE)
        self._series.append((time.time(), by_kind))

    def _cpu_by_kind(self) -> dict[str, float]:
        by_kind = {_BESIDE: 0.0}
        for kind, before, seconds in self._cpu.values():
            by_kind[kind] = by_kind.get(kind, 0.0) + seconds - before
        return by_kind


def _processes_beside(session: int) -> Iterator[tuple[str, psutil.Process]]:
    """The benchmark itself and what it has started, outside a session."""
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(OSError, psutil.Error):  # it has ended
            if os.getsid(process.pid) != session:
                yield _BESIDE, process


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


def processes_by_kind(session: int) -> Iterator[tuple[str, psutil.Process]]:
    """The processes of a session that count, each with its kind."""
    for process in session_processes(session):
        with suppress(OSError, psutil.Error):  # it has ended
            if (kind := process_kind(process, session)) is not None:
                yield kind, process


def _machine_busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def process_kind(process: psutil.Process, session: int) -> str | None:
    """The kind of a process; None for one that is not to be counted, or is about to end."""
    if process.pid == session:
        return "driver"
    command = process.cmdline()
    if not command:
        return None
    if Path(process.exe()).name in ("java", "jspawnhelper"):
        # A JVM that starts a command is for a moment two processes with one memory. An executor is a JVM that another
        # one started, with another command line.
        parent = process.parent()
        starts = Path(process.exe()).name == "jspawnhelper" or (parent is not None and parent.cmdline() == command)
        return None if starts else "jvm"
    if Path(command[0]).name == "sh":  # around a container, for its exit status
        return None
    return "containers" if "penstock.container" in command else "spark workers"


def run_side(target: str, parameters: Mapping[str, Any], work: Path, timeout_s: float = 3600) -> SideRun:
    """Run `module:function` in a fresh process and session, with its log and result in `work`.

    Raises:
        SideFailedError: the side failed, or took longer than `timeout_s`.
    """
    started = time.monotonic()
    with side_process(target, parameters, work) as process:
        sampler = UsageSampler(process.pid)
        try:
            status: int | str = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = f"none after {timeout_s:.0f} s"
        finally:
            usage = sampler.close()
    if status != 0:
        end = "\n".join((work / LOG).read_text(errors="replace").splitlines()[-40:])
        raise SideFailedError(f"{target} failed (exit status {status}). The end of {work / LOG}:\n{end}")
    return SideRun(orjson.loads((work / RESULT).read_bytes()), usage, time.monotonic() - started)


@contextmanager
def side_process(target: str, parameters: Mapping[str, Any], work: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a side, which runs `module:function`. At the end, all that its session has left is killed."""
    work.mkdir(parents=True, exist_ok=True)
    given = work / "parameters.json"
    given.write_bytes(orjson.dumps(parameters))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
    with (work / LOG).open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness", target, str(given), str(work / RESULT)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=work, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        for left in session_processes(process.pid):
            with suppress(psutil.Error):
                left.kill()
        process.wait()


def wait_for(
    condition: Callable[[], T | None],
    what: str,
    check: Callable[[], object] = lambda: None,
    pause_s: float = 0.01,
    timeout_s: float = DEADLINE_S,
) -> T:
    """Wait for a condition, and return its value. `check` raises an error if it cannot hold any more."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(pause_s)
    return found


@contextmanager
def repeating(step: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Take a step again and again, from a separate thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause_s):
            step()

    thread = threading.Thread(target=run, name="repeating", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def files_below(folder: Path) -> list[Path]:
    """Every file, also of a folder that changes meanwhile."""
    return sorted(Path(path, name) for path, _, names in os.walk(folder) for name in names)


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in files_below(folder))


def machine() -> dict[str, Any]:
    """The machine and the versions a result belongs to."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java_version(),
        "packages": {each.name: each.version for each in importlib.metadata.distributions() if each.name in _PACKAGES},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _java_version() -> str:
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME')}/bin") or shutil.which("java")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr if java else ""
    return said.partition("\n")[0] or "unknown"


def run_facts(run: SideRun) -> dict[str, Any]:
    usage = run.usage
    return {
        "seconds": round(run.seconds, 2),
        "peak": usage.peak,
        "peak_bytes": sum(usage.peak.values()),
        "cpu_seconds": {kind: round(seconds, 2) for kind, seconds in usage.cpu_seconds.items()},
        "others_cpu_seconds": round(usage.others_cpu_seconds, 2),
    }


def contention(runs: Mapping[str, Sequence[Run]], cores: int) -> list[str]:
    """A line for each side in a run of which other programs took more than CONTENTION_SHARE of the machine."""
    found = []
    for name, own in runs.items():
        shares = [run["others_cpu_seconds"] / (run["seconds"] * cores) for run in own if "others_cpu_seconds" in run]
        if max(shares, default=0) > CONTENTION_SHARE:
            found.append(f"{name}: {', '.join(f'{share:.0%}' for share in shares)}")
    return found


def median(runs: Iterable[Run], figure: str) -> float:
    """The median of a figure over the runs that have it."""
    return float(statistics.median(run[figure] for run in runs if run.get(figure) is not None))


def percentile(values: Iterable[float], share: float) -> float:
    """A value that was measured, below which this share of the values is."""
    ascending = sorted(values)
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]


def against(sides: Mapping[str, Sequence[Run]], figure: str, base: str) -> dict[str, float]:
    """Each side's figure over that of the side `base` in the same round: the median of the rounds."""
    return {
        side: round(statistics.median(a[figure] / b[figure] for a, b in zip(own, sides[base], strict=True)), 3)
        for side, own in sides.items()
        if side != base
    }


def show(title: str, rows: Mapping[str, Run], **columns: str) -> None:
    """Print a table: a row by name, and for each column the format of the figure with its name, or `MB`.

    An underscore in a column's name is a blank in the heading. A figure that a row lacks leaves its cell empty.
    """
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("side")
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right")
    for name, row in rows.items():
        table.add_row(name, *(_cell(row.get(figure), form) for figure, form in columns.items()))
    console.print(table)


def _cell(value: Any, form: str) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, (bool, str)):
        return value if isinstance(value, str) else "verified" if value else "WRONG"
    return f"{value / 2**20:,.0f} MB" if form == "MB" else format(value, form)


def options(name: str, text: str | None, given: Sequence[str] | None, /, **defaults: Any) -> argparse.Namespace:
    """The options of a benchmark. The default of an option says what it takes.

    A list takes several values, of the same kind as its elements; texts only those of the default. True or False is a
    switch.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(text or "").partition("\n")[0])
    for key, default in defaults.items():
        flag, several = f"--{key.replace('_', '-')}", isinstance(default, list)
        kind = type(default[0] if several else default)
        if kind is bool:
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(
                flag, type=kind, default=default, nargs="+" if several else None, help=f"default: {default}",
                choices=default if several and kind is str else None,
            )  # fmt: skip
    return parser.parse_args(given)


class Bench:
    """A run of a benchmark: its folder, the runs of its sides, and its file of results."""

    def __init__(self, name: str, options: argparse.Namespace, work: str) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as Ctrl-C: sides and folders go
        self.name = name
        self.options = options
        self.work = Path(work)
        self.parameters = {name: value for name, value in vars(options).items() if name != "json"}
        self.machine = machine()
        self.runs: dict[str, list[dict[str, Any]]] = {}
        """By side."""
        self.targets: dict[str, bool] = {}
        """By text: whether it was reached."""
        packages = ", ".join(f"{package} {version}" for package, version in self.machine["packages"].items())
        console.print(
            f"{self.machine['cpu']}, {self.machine['cores']} cores, {self.machine['memory_bytes'] / 2**30:.0f} GiB; "
            f"Python {self.machine['python']}, {self.machine['java']}; {packages}"
        )

    def turns(self, sides: Iterable[Any], repeat: int = 1) -> Iterator[Any]:
        """The sides in turn, every other round in the opposite order: a machine whose speed changes favours none."""
        all_sides = list(sides)
        for number in range(repeat):
            yield from all_sides if number % 2 == 0 else reversed(all_sides)

    def run(
        self,
        side: str,
        target: str,
        parameters: Mapping[str, Any],
        *,
        figures: Callable[[SideRun], Mapping[str, Any]] = lambda run: run.result,
        verify: str | Callable[[Path], Mapping[str, Any]] | None = None,
        timeout_s: float = 3600,
    ) -> dict[str, Any]:
        """Run a side once, in an empty folder that is its parameter `work`.

        Args:
            side: its name in the results.
            target: `module:function` in this package.
            parameters: of the function, beside the options of the benchmark.
            figures: makes the figures of the run.
            verify: what compares the result with a plain computation, before the folder goes: another target, or a
                function of the folder. It returns a dict whose `equal` says if all is right.
        """
        work = self.work / "side"
        given = {**self.parameters, **parameters, "work": str(work)}
        with console.status(f"{self.name}: {side}"):
            run = run_side(f"benchmarks.{target}", given, work, timeout_s)
            found = {**figures(run), **run_facts(run)}
            if callable(verify):
                found["verified"] = dict(verify(work))
            elif verify is not None:
                found["verified"] = run_side(f"benchmarks.{verify}", given, work / "verify").result
        shutil.rmtree(work, ignore_errors=True)
        self.runs.setdefault(side, []).append(found)
        return found

    def medians(self, *figures: str) -> dict[str, dict[str, Any]]:
        """By side, the medians of the figures that it has, the largest memory, and whether all runs were right."""
        return {
            side: {
                **{name: median(runs, name) for name in figures if any(run.get(name) is not None for run in runs)},
                "peak_bytes": max((run["peak_bytes"] for run in runs if "peak_bytes" in run), default=None),
                "verified": not any(map(is_wrong, runs)),
            }
            for side, runs in self.runs.items()
        }

    def target(self, text: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """Say, and keep, whether a target is reached."""
        bound = at_least if at_least is not None else at_most
        reached = value >= bound if at_least is not None else value <= bound  # type: ignore[operator]
        self.targets[text] = bool(reached)
        word = "least" if at_least is not None else "most"
        console.print(f"{text}: {value:,.3g}, to be at {word} {bound:,g}: {'reached' if reached else 'NOT reached'}")

    def finish(self, sides: Mapping[str, Mapping[str, Any]] | None = None, **result: Any) -> int:
        """Warn of other programs, and write the results, with the figures of each side over all its runs. Returns the
        exit status: 1 if a run's result was wrong."""
        contended = contention(self.runs, self.machine["cores"])
        if contended:
            console.print("Not to be quoted: other programs took this share of the machine, round by round")
            for line in contended:
                console.print(f"  {line}")
        names = dict.fromkeys([*self.runs, *(sides or {})])
        own = {name: {**(sides or {}).get(name, {}), "rounds": self.runs.get(name, [])} for name in names}
        fixed = {"benchmark": self.name, "machine": self.machine, "parameters": self.parameters}
        found = {**fixed, "sides": own, **result, "targets": self.targets, "contention": contended}
        path: Path = self.options.json
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n")
        console.print(f"written to {path}")
        return int(any(is_wrong(run) for runs in self.runs.values() for run in runs))


def benchmark(
    name: str, text: str | None, /, **defaults: Any
) -> Callable[[Callable[[Bench], int]], Callable[..., int]]:
    """Make a benchmark's `main` of a function that runs it. Its options are those of `options`, and `--json`.

    `main` takes the words of a command, those of this process by default, and returns the exit status. A module that
    was started as a program is run here, and the process ends; so `main` is the last function of its module.
    """

    def made(run: Callable[[Bench], int]) -> Callable[..., int]:
        def main(given: Sequence[str] | None = None) -> int:
            own = options(name, text, given, **defaults, json=RESULTS / f"{name}.json")
            with TemporaryDirectory(prefix="penstock-bench-") as work:
                return run(Bench(name, own, work))

        if run.__module__ == "__main__":
            sys.exit(main())
        return main

    return made


def is_wrong(run: Run) -> bool:
    """True if the result of a run was compared with a plain computation, and differs."""
    verified = run.get("verified", True)
    return verified is False or (isinstance(verified, Mapping) and not verified["equal"])


def main(arguments: list[str]) -> None:
    """Run the function of a side, and write what it returned."""
    target, parameters, result = arguments
    module, _, name = target.partition(":")
    function: Callable[[dict[str, Any]], dict[str, Any]] = getattr(importlib.import_module(module), name)
    Path(result).write_bytes(orjson.dumps(function(orjson.loads(Path(parameters).read_bytes()))))


if __name__ == "__main__":
    main(sys.argv[1:])
