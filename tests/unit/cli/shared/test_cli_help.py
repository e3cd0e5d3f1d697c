"""The command line speaks of its options: the list of commands, `--help`, arguments, completion, and errors."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

import penstock
from penstock.base.wording import argument, flag
from penstock.cli.main import COMMANDS, app
from penstock.cli.shared.errors import OPTIONS, with_options
from penstock.cli.shared.options import Call
from penstock.job.paths import JobPaths
from tests.support.processes.python import run_python
from tests.support.stores.stopped_job import STREAM, StoppedJob, saved
from tests.support.tools.cli import call, own_home


def calls() -> list[tuple[str, ...]]:
    """The command line, every command, and every command of a group."""
    found: list[tuple[str, ...]] = [()]
    for name, entry in COMMANDS.items():
        own: dict[str, Any] = getattr(entry.load(name), "commands", {})
        found += [(name,), *((name, each) for each in own)]
    return found


@pytest.mark.few(25)
@pytest.mark.parametrize("call", calls(), ids=lambda call: " ".join(("penstock", *call)))
def test_the_help_fits_and_reads_well(call: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*call, "--help"], env={"COLUMNS": "80"})
    lines = [line.rstrip() for line in done.output.splitlines()]
    assert done.exit_code == 0, done.output
    assert max(cell_len(line) for line in lines) <= 80
    assert "<bool>" not in done.output, "what takes no value has no type"
    assert "[[" not in done.output, "an argument in twice the brackets"
    prose = [line.strip() for line in lines[2 : next(n for n, line in enumerate(lines) if line.startswith("╭"))]]
    for line, following in pairwise(prose):
        if line and following:
            word = following.split()[0]
            assert len(line) + 1 + len(word) > 78, f"`{line}` is broken before `{word}`, which fits"


def test_the_list_of_commands_loads_no_command() -> None:
    code = """
import sys
from penstock.cli.main import app
try:
    app(["--help"])
except SystemExit:
    pass
wanted = {"penstock", "penstock.cli", "penstock.cli.main",
          "penstock.cli.shared", "penstock.cli.shared.errors", "penstock.cli.shared.options",
          "penstock.errors", "penstock.base", "penstock.base.plugins",
          "penstock.base.secrets", "penstock.base.wording"}
heavy = {"yaml", "psutil", "orjson", "numpy", "pyarrow", "pyspark", "obstore"}
ours = {name for name in sys.modules if name.partition(".")[0] == "penstock"}
print("loaded too much:", sorted((ours - wanted) | (heavy & sys.modules.keys())))
"""
    done = run_python("-c", code)
    assert done.stdout.strip().endswith("loaded too much: []")
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    command = COMMANDS[name].load(name)
    assert command.name == name
    assert (command.help or "").split("\n\n")[0].replace("\n", " ") == COMMANDS[name].help


def test_a_list_of_the_commands_of_a_group_loads_neither_arrow_nor_spark() -> None:
    groups = [name for name, entry in COMMANDS.items() if entry.function is None]
    code = f"""
import sys
from penstock.cli.main import COMMANDS
for name in {groups}:
    COMMANDS[name].load(name)
print("loaded too much:", sorted({{"pyarrow", "pyspark", "py4j", "rocksdict"}} & sys.modules.keys()))
"""
    done = run_python("-c", code)
    assert done.stdout.strip() == "loaded too much: []"


ROOT = Path(penstock.__file__).parent
OWN = {"spark/session/session.py", "spark/session/gateway.py", "host/posix.py", "system/kafka/errors.py"}
"""These read or make the options of other programs."""
DOCUMENTATION = {"config/reference.py", "config/settings.py"}
OF_A_COMMAND = (
    r"penstock [a-z]|^\{|^ ID`|^ APP --|^--stream $|^ --(?:partition|task|retention|operator|moved`|wait`)"
    r"|spark-submit --|kafka-acls\.sh --|^ --(?:add|operation)\b|^--cluster$|^--resource-pattern-type"
)
"""A whole command, or a piece of one."""


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (argument("with_state", "keep"), "--with-state keep"),
        (argument("operator"), "--operator"),
        (argument("assignments", ["job.root=..."]), "-c job.root=..."),
        (flag("clamp"), "--clamp"),
        ("store `task=...x` and `other=...` and task=True", "store `task=...x` and `other=...` and task=True"),
    ],
)
def test_an_argument_is_shown_as_an_option(said: str, shown: str) -> None:
    assert with_options(f"give {said}, or not") == f"give {shown}, or not"


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every text that is no docstring."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


def library(pattern: str) -> dict[str, ast.Module]:
    """File -> its syntax tree, of the files that have the pattern."""
    parts = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]
    files = {
        p.as_posix(): (ROOT / p).read_text()
        for p in parts
        if p.parts[0] not in {"cli", "testing"} and p.as_posix() not in OWN | DOCUMENTATION
    }
    return {path: ast.parse(text) for path, text in files.items() if re.search(pattern, text)}


def test_the_library_names_no_option_outside_a_whole_command() -> None:
    found = [
        f"{path}:{line}: {text}"
        for path, tree in library("--[a-z]").items()
        for line, text in texts(tree)
        if re.search(r"(?<![-\w])--[a-z]", text) and not re.search(OF_A_COMMAND, text)
    ]
    assert found == []


def test_every_argument_that_a_message_names_has_an_option() -> None:
    calls = [
        node.args[0]
        for tree in library(r"\b(argument|flag)\(").values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"argument", "flag"}
    ]
    named = {node.value for node in calls if isinstance(node, ast.Constant)}
    assert named == OPTIONS.keys()


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (Call(), ""),
        (Call(Path("my f.yaml"), ["a.b=c"]), " --config 'my f.yaml' -c a.b=c"),
        (
            Call(None, ["systems.k.consumer.sasl.jaas.config=x y", "systems.k.consumer.sasl.password=pw"]),
            " -c systems.k.consumer.sasl.jaas.config=... -c systems.k.consumer.sasl.password=...",
        ),
    ],
)
def test_the_options_of_a_call_have_no_secrets(call: Call, options: str) -> None:
    assert call.options == options


def test_the_command_of_a_refusal_works_as_pasted(tmp_path: Path) -> None:
    """A waiting request that cannot be applied: the error's own command deletes it, from another environment."""
    job = StoppedJob(tmp_path)
    job.run(saved(1, (2, 3)), saved(2))
    file = tmp_path / "my flights.yaml"
    file.write_text(
        f"job.root: {tmp_path}/jobs\nsystems.local.samza.factory: local\nsystems.local.path: {tmp_path}/streams\n"
    )
    options = ["--config", str(file)]
    assert job is not None
    set_ = ["startpoint", "set", "flights", "--stream", f"local.{STREAM}", "--partition", "1"]
    made = CliRunner().invoke(app, [*set_, "--offset", "5", *options])
    assert made.exit_code == 0, made.stderr
    shown = CliRunner().invoke(app, ["status", "flights", *options])
    assert shown.exit_code == 0, shown.stderr
    refused = CliRunner().invoke(app, [*set_, "--offset", "99", *options])
    assert refused.exit_code != 0
    assert "cannot be applied" in refused.stderr
    assert "startpoint delete" not in refused.stderr  # this one does not wait: nothing is to be deleted
    listed = CliRunner().invoke(app, ["checkpoint", "show", "flights", "1-2", *options])
    (command,) = re.findall(r"`(penstock [^`]*)`", listed.stderr)
    lacking = f" --config {shlex.quote(str(file))}"
    assert listed.stderr.endswith(f"Give the commands in this message the options of this call:{lacking}\n")
    again = CliRunner().invoke(app, shlex.split(command + lacking)[1:])
    assert again.exit_code == 0, again.stderr


SLOW_TO_IMPORT = {"pyspark", "pyarrow", "numpy", "pandas", "rocksdict"}
SCRIPT = """
import atexit, json, os, sys
atexit.register(lambda: print(*{each.partition(".")[0] for each in sys.modules}, file=sys.stderr))
from penstock.cli.main import main
for variables in json.load(sys.stdin):
    os.environ.update(variables)
    sys.argv = ["penstock"]
    try:
        main()
    except SystemExit:
        print("\\0")
"""


def complete(*calls: str, shell: str = "bash") -> list[list[str]]:
    """The proposals for the last word of each, all in one process, which nothing slow was imported for."""
    variables = [
        {
            "_PENSTOCK_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": f"penstock {each}",
            "COMP_CWORD": str(each.count(" ") + 1),
            "_TYPER_COMPLETE_ARGS": f"penstock {each}",
        }
        for each in calls
    ]
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, input=json.dumps(variables), capture_output=True, text=True, check=False)
    assert set(done.stderr.split()) & SLOW_TO_IMPORT == set()
    assert "penstock" in done.stderr
    found = [each.removeprefix("\n").split("\n")[:-1] for each in done.stdout.split("\0")[:-1]]
    assert len(found) == len(calls), done.stderr
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two jobs."""
    home = own_home(tmp_path, monkeypatch)
    for name in ("flights", "shop-totals"):
        lease = home / "jobs" / JobPaths(name, "1").lease
        lease.parent.mkdir(parents=True)
        lease.touch()
    return home


def test_commands_and_options_are_completed() -> None:
    groups, command, option = complete("sta", "state s", "run job.py:app --unt")
    assert groups == ["status", "startpoint", "state"]
    assert command == ["scan"]
    assert option == ["--until"]
    assert complete("ne", shell="zsh")[0][0].startswith('_arguments \'*: :(("new":"Make a folder')


def test_jobs_of_the_root_are_completed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(f"job.root: {tmp_path}/nothing")
    both, one, another, *others = complete(
        "status ",
        "checkpoint list sh",
        "dashboard flights-1 sh",
        "status --config other.yaml ",
        "status --config missing.yaml ",
        "status -c job.root=s3://bucket/jobs ",
    )
    assert both == ["flights-1", "shop-totals-1"]
    assert one == another == ["shop-totals-1"]
    assert others == [[""]] * 3
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    assert f"complete_{shell}" in call("--show-completion")[0]


def test_bash_completes_with_its_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    (tmp_path / "script").write_text(call("--show-completion")[0])
    commands = 'source "$1"; COMP_WORDS=(penstock sta); COMP_CWORD=1; "$3" "$2"; echo "${COMPREPLY[@]}"'
    penstock = Path(sys.executable).with_name("penstock")
    done = subprocess.run(
        ["bash", "-c", commands, "bash", str(tmp_path / "script"), str(penstock), "_penstock_completion"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["status", "startpoint", "state"], done.stderr


@pytest.mark.parametrize("name", ["status", "stream"])
def test_a_command_is_put_together_once_in_a_process(name: str) -> None:
    assert COMMANDS[name].load(name) is COMMANDS[name].load(name)
