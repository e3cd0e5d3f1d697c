"""Programs in forks of a process that has imported what they need: imports take most of the time of a short one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.processes.inspection import hear_ctrl_c
from tests.support.tools.places import ROOT

_SERVE = """
import json as _json, os as _os, sys as _sys

for _line in _sys.stdin:
    _asked = _json.loads(_line)
    _child = _os.fork()
    if not _child:
        break
    print(_child, flush=True)
    print(_os.waitstatus_to_exitcode(_os.waitpid(_child, 0)[1]), flush=True)
else:
    _sys.exit()
for _number, _path in enumerate((_os.devnull, _asked["out"], _asked["err"])):
    _os.dup2(_os.open(_path, _os.O_WRONLY | _os.O_CREAT | _os.O_TRUNC if _number else _os.O_RDONLY), _number)
exec(compile(_asked["program"], "<string>", "exec"))
"""
"""A fork leaves the loop, and its program is the last that the interpreter runs before it ends as always."""


class WarmPython:
    """Forks programs, one after the other, of a process that has run `begin` and has no other thread."""

    def __init__(self, begin: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", begin + _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            preexec_fn=hear_ctrl_c,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, program: str, out: Path, err: Path) -> int:
        """Start a program with these files as its output. Returns its process id, which it has until `wait` returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"program": program, "out": str(out), "err": str(err)}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def wait(self, pid: int, limit_s: float) -> int:
        """Wait for the end of the program, and end it after so long: its exit status, or less than zero the signal that
        ended it."""
        limit = threading.Timer(limit_s, os.kill, (pid, signal.SIGKILL))
        limit.start()
        try:
            return self._answer()
        finally:
            limit.cancel()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks programs has ended"
        return int(line)
