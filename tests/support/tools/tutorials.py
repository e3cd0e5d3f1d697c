"""Runs a page of the documentation as a reader does: in an empty folder, from its first line to its last.

The notation of a page:

* A paragraph that ends with ``Save this as `bikes.py`:`` comes before a block that is written to this file.
* A paragraph that ends with ``Change `bikes.py`:`` comes before a block ``diff``. Its lines with a blank or a minus are
  in the file once; its lines with a blank or a plus replace them.
* A block ``console`` has commands of bash behind ``$ ``, and behind each command its output, standard error included.
  A backslash at the end of a line continues the command.
* ``...`` alone in a line of output matches any lines, and within a line any text. Blanks at the end of a line do not
  count. Of ids of checkpoints and runs, of times since 2026 and of seconds, only the form counts. The progress of a
  slow `penstock stream publish` does not count.
* A command with ``&`` at its end stays in the background. The page continues as soon as the output that it shows is
  there. ``%1`` is the first such command that still runs. Those left at the end of the page are ended.
* A command that fails shows a line of output with ``error``.
* Blocks ``sh`` and ``text`` are for the reader only, such as the installation. Blocks of another kind are a mistake.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["run_page"]

_DEADLINE_S = 300
_FORMS = {
    r"\b\d{13}-\d+\b": "<checkpoint>",
    r"\b[0-9a-f]{12}\b": "<run>",
    r"\b20(?:2[6-9]|[3-9]\d)-\d\d-\d\dT[\d:.]+Z": "<time>",
    r"\b\d+\.\d+ ?s\b": "<seconds>",
}
_SKIPPED = ("sh", "text")


@dataclass(frozen=True, slots=True)
class _Block:
    """A fenced block: the number of its first line, its language, its text, and the end of the paragraph before it."""

    line: int
    language: str
    text: str
    before: str


@dataclass(frozen=True, slots=True)
class _Command:
    """A command of a block and the output that the page shows."""

    line: int
    text: str
    output: list[str]


def run_page(page: Path, folder: Path, *, before: str = "", replace: Mapping[str, str] | None = None) -> None:
    """Run the page in the folder, up to the heading `before` if there is one.

    `replace` names texts of the page that are others here, such as the address of a broker.

    Raises:
        AssertionError: the page is wrong. The message has the line, the command and a diff.
    """
    text = page.read_text(encoding="utf-8")
    if before:
        assert f"\n{before}\n" in text, f"{page.name} has no heading {before!r}"
        text = text.partition(f"\n{before}\n")[0]
    for old, new in (replace or {}).items():
        assert old in text, f"{page.name} does not have {old!r}"
        text = text.replace(old, new)
    with _Shell(folder) as shell:
        for block in _blocks(text):
            if block.language in _SKIPPED:
                continue
            try:
                _run(block, shell)
            except AssertionError as error:
                raise AssertionError(f"{page.name}:{error}") from None


def _blocks(text: str) -> Iterator[_Block]:
    """The fenced blocks of a page."""
    for found in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        before = " ".join(text[: found.start()].rstrip().rpartition("\n\n")[2].split())
        yield _Block(text.count("\n", 0, found.start(2)) + 1, found[1], found[2], before)


def _commands(block: _Block) -> list[_Command]:
    """The commands of a block `console`."""
    found: list[_Command] = []
    open_line = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        if open_line:
            found[-1] = _Command(found[-1].line, f"{found[-1].text}\n{line}", [])
        elif line.startswith("$ "):
            found.append(_Command(number, line[2:], []))
        else:
            assert found, f"{number}: output without a command"
            found[-1].output.append(line)
            continue
        open_line = line.endswith("\\")
    return found


def _same(shown: list[str], printed: str) -> str:
    """A diff of what the page shows and what was printed; empty if they are the same."""
    patterns = [_pattern(line) for line in shown]
    lines = [_formed(line) for line in printed.splitlines() if not line.startswith("publishing to ")]
    whole = "".join(r"(?:.*\n)*?" if each == "..." else f"{each}\n" for each in patterns)
    if re.fullmatch(whole, "".join(f"{line}\n" for line in lines)):
        return ""
    known = {pattern: line.rstrip() for pattern, line in zip(patterns, shown, strict=True) if pattern != "..."}
    named = [next((text for pattern, text in known.items() if re.fullmatch(pattern, line)), line) for line in lines]
    return "\n".join(line for line in difflib.ndiff([each.rstrip() for each in shown], named) if line[0] != "?")


def _run(block: _Block, shell: _Shell) -> None:
    if block.language == "console":
        for command in _commands(block):
            shell.run(command)
    elif saved := re.search(r"[Ss]ave this as `([^`]+)`:$", block.before):
        shell.path(saved[1]).write_text(block.text, encoding="utf-8")
    elif changed := re.search(r"[Cc]hange `([^`]+)`:$", block.before):
        path = shell.path(changed[1])
        path.write_text(_changed(path.read_text(encoding="utf-8"), block), encoding="utf-8")
    else:
        raise AssertionError(f"{block.line}: nothing says what to do with this block of {block.language or 'text'}")


def _changed(text: str, block: _Block) -> str:
    lines = block.text.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] != "+")
    assert text.count(old) == 1, f"{block.line}: the lines to change are in the file {text.count(old)} times:\n{old}"
    return text.replace(old, "".join(line[1:] for line in lines if line[0] != "-"))


def _pattern(line: str) -> str:
    if line.strip() == "...":
        return "..."
    return ".*?".join(re.escape(part) for part in _formed(line).split("..."))


def _formed(line: str) -> str:
    for pattern, form in _FORMS.items():
        line = re.sub(pattern, form, line)
    return line.rstrip()


class _Shell:
    """Runs commands in one folder, and ends those that are left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = _environment()
        self._background: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> _Shell:
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs: as a terminal does that is closed, and after a minute by force."""
        for process in self._background.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._background.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def path(self, name: str) -> Path:
        """A file of the folder."""
        path = (self._folder / name).resolve()
        assert path.is_relative_to(self._folder.resolve()), f"{name} is not in the folder of the page"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def run(self, command: _Command) -> None:
        """Run the command and compare its output."""
        text = re.sub(r"%(\d)\b", lambda found: f"-{self._background[int(found[1])].pid}", command.text)
        if text.endswith("&"):
            self._start(command, text[:-1].rstrip())
            return
        process, log = self._popen(text)
        try:
            status = process.wait(_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise _failed(command, f"does not end. It printed:\n{log.read_text(encoding='utf-8')}") from None
        printed = log.read_text(encoding="utf-8")
        if difference := _same(command.output, printed):
            raise _failed(command, f"prints something else, exit status {status}:\n{difference}")
        if status and not any("error" in line for line in command.output):
            raise _failed(command, f"fails with exit status {status}:\n{printed}")

    def _popen(self, text: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start the command in its own process group. Its output goes to the file."""
        log = self._folder / f".output-{time.monotonic_ns()}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", text],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process, log

    def _start(self, command: _Command, text: str) -> None:
        """Start the command, and wait for the output that the page shows."""
        number = 1 + max((n for n, process in self._background.items() if process.poll() is None), default=0)
        process, log = self._popen(f"exec {text}")
        self._background[number] = process
        deadline = time.monotonic() + _DEADLINE_S
        while _same([*command.output, "..."], printed := log.read_text(encoding="utf-8")):
            if process.poll() is not None:
                raise _failed(command, f"has ended with exit status {process.returncode}. It printed:\n{printed}")
            if time.monotonic() > deadline:
                raise _failed(command, f"does not print what the page shows:\n{_same(command.output, printed)}")
            time.sleep(0.05)


def _failed(command: _Command, text: str) -> AssertionError:
    return AssertionError(f"{command.line}: `{command.text}` {text}")


def _environment() -> Mapping[str, str]:
    """A terminal of 80 columns, with the commands of this interpreter's environment and nothing of a test run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTEST_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "COLUMNS": "80", "PYTHONUNBUFFERED": "1"}
