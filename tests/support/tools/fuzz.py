"""Damages what Penstock reads, guided by the code that runs: `make fuzz`, or

    python -m tests.support.tools.fuzz [--minutes N] [--keep] [PARSER...]

Each parser of `tests/support/parsers/table.py`, or each that is named, has so many minutes of CPU in a process of its
own, with limits of memory and of the time for one input. It begins with the parser's valid bytes and its kept inputs.
At the end, what was found is printed. With `--keep`, inputs that failed and those that reach other code are added to
the kept ones, which `tests/property/test_parsers.py` runs. `--list` names the parsers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import psutil

from penstock.base.wording import counted
from tests.support.parsers.kept import folder_of, kept
from tests.support.tools.places import ROOT

_MEMORY_BYTES = 3 << 30
"""Beside what the process has when it begins. A wrong length that is believed reserves more."""
_TIMEOUT_S = 120
"""For one input. What takes longer ends the process; what takes long but ends is found by the parser's judgement."""
_MOST_KEPT = 30
_LONGEST_KEPT = 2048
_LEAST_LENGTH = 4096
_PENSTOCK = str(ROOT / "penstock") + os.sep


def main(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(prog="fuzz")
    options.add_argument("--minutes", type=float, default=2.0)
    options.add_argument("--keep", action="store_true")
    options.add_argument("--list", action="store_true")
    options.add_argument("parsers", nargs="*")
    given = options.parse_args(arguments)
    if given.list:
        from tests.support.parsers.table import PARSERS

        print("\n".join(PARSERS))
        return 0
    import atheris

    with redirect_stderr(StringIO()), atheris.instrument_imports(include=["penstock"]):
        from tests.support.parsers.table import PARSERS
    unknown = [name for name in given.parsers if name not in PARSERS]
    if unknown:
        sys.exit(f"there is no parser `{unknown[0]}`: `--list` names them")
    found = sum(run(name, given.minutes, keep=given.keep) for name in given.parsers or PARSERS)
    print(f"{counted(found, 'finding')} in {counted(len(given.parsers or PARSERS), 'parser')}")
    return 1 if found else 0


def run(name: str, minutes: float, *, keep: bool) -> int:
    """Fuzz one parser in a separate process, and print the findings. Returns the number of findings."""
    with TemporaryDirectory() as folder:
        work = Path(folder)
        for part in ("found", "inputs"):
            (work / part).mkdir()
        sys.stdout.flush()
        if (child := os.fork()) == 0:  # the code that is counted is imported once
            with (work / "log").open("wb") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            try:
                fuzz(name, work, minutes)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        failed = {path.stem: path.with_suffix(".txt").read_text() for path in sorted((work / "found").glob("*.bin"))}
        if status:
            (work / "found" / "ended.bin").write_bytes(_last_input(work))
            said = (work / "log").read_bytes().decode(errors="replace")
            failed["ended"] = f"the process ended with {status}:\n{said[-3000:]}"
        inputs = [*(work / "inputs").iterdir()]
        print(f"{name}: {len(failed)} findings, {len(inputs)} inputs that reach other code", flush=True)
        for stem, text in failed.items():
            data = (work / "found" / f"{stem}.bin").read_bytes()
            print(f"  {len(data)} bytes, {data[:300]!r}\n{text}", flush=True)
        if keep:
            own = folder_of(name)
            chosen = dict.fromkeys(choose(name, inputs), "")
            chosen |= {(work / "found" / f"{stem}.bin").read_bytes(): "failed-" for stem in failed}
            for data, prefix in chosen.items():
                own.mkdir(parents=True, exist_ok=True)
                (own / f"{prefix}{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)
        return len(failed)


def _last_input(work: Path) -> bytes:
    """The input that the process read when it ended."""
    written = (work / "present").read_bytes() if (work / "present").exists() else b""
    return written[8 : 8 + int.from_bytes(written[:8], "little")]


def fuzz(name: str, work: Path, minutes: float) -> None:
    """Fuzz a parser for so many minutes of CPU, and end the process. Each finding is written to the folder `found`,
    once for each place of the code that it comes from, and the input that is being read to the file `present`."""
    import atheris

    from tests.support.parsers.table import PARSERS

    parser = PARSERS[name]
    begin = [*parser.seeds, *kept(name)]
    for number, data in enumerate(begin):
        (work / "inputs" / f"{number:04}").write_bytes(data)
    present = os.open(work / "present", os.O_RDWR | os.O_CREAT)
    known: set[str] = set()
    until = time.process_time() + minutes * 60

    def judge(data: bytes) -> None:
        os.pwrite(present, len(data).to_bytes(8, "little") + data, 0)
        try:
            parser.judge_within_limits(data)
        except BaseException as error:  # those of Rust are no Exception
            place = _place_of(error)
            if place not in known:
                known.add(place)
                stem = work / "found" / hashlib.sha256(place.encode()).hexdigest()[:12]
                stem.with_suffix(".txt").write_text("".join(traceback.format_exception(error)[-12:])[-4000:])
                stem.with_suffix(".bin").write_bytes(data)
        if time.process_time() > until:
            os._exit(0)

    most = _MEMORY_BYTES + psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    longest = max(_LEAST_LENGTH, *(len(data) + 1024 for data in begin))
    flags = [
        f"-timeout={_TIMEOUT_S}", f"-rss_limit_mb={_MEMORY_BYTES >> 20}", f"-max_len={longest}",
        f"-artifact_prefix={work}/",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *flags, str(work / "inputs")], judge)
    atheris.Fuzz()


def _place_of(error: BaseException) -> str:
    """The kind of an error, and the innermost place in Penstock that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if frame.filename.startswith(_PENSTOCK)] or frames
    return f"{type(error).__name__} {inner[-1].filename}:{inner[-1].lineno}"


def choose(name: str, files: Iterable[Path]) -> list[bytes]:
    """The smallest of these inputs that reach code which neither the seeds, nor kept inputs, nor smaller ones reach."""
    from tests.support.parsers.table import PARSERS

    parser, before = PARSERS[name], kept(name)
    known: set[Any] = set()
    for data in (*parser.seeds, *before):
        known |= steps_of(parser.judge, data)
    chosen: list[bytes] = []
    for data in sorted({file.read_bytes() for file in files}, key=lambda each: (len(each), each)):
        if len(chosen) + len(before) >= _MOST_KEPT or len(data) > _LONGEST_KEPT:
            break
        if more := steps_of(parser.judge, data) - known:
            known |= more
            chosen.append(data)
    return chosen


def steps_of(judge: Callable[[bytes], None], data: bytes) -> set[tuple[str, int, int]]:
    """The steps from line to line of Penstock that some bytes lead to."""
    found: set[tuple[str, int, int]] = set()

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PENSTOCK):
            return None
        last = frame.f_lineno

        def step(inner: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            found.add((inner.f_code.co_filename, last, inner.f_lineno))
            last = inner.f_lineno
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        judge(data)
    except Exception:
        pass
    finally:
        sys.settrace(before)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
