"""The list of commands: it is quick because it loads none of them, and says what they say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.cli.main import COMMANDS


def test_the_list_of_commands_loads_no_command() -> None:
    code = """
import sys
from penstock.cli.main import app
try:
    app(["--help"])
except SystemExit:
    pass
wanted = {"penstock", "penstock.admin", "penstock.admin.program", "penstock.cli", "penstock.cli.main",
          "penstock.cli.shared", "penstock.cli.shared.errors", "penstock.cli.shared.options",
          "penstock.errors", "penstock.base", "penstock.base.plugins", "penstock.base.public_names",
          "penstock.base.secrets", "penstock.base.wording"}
heavy = {"yaml", "psutil", "orjson", "numpy", "pyarrow", "pyspark", "obstore"}
ours = {name for name in sys.modules if name.partition(".")[0] == "penstock"}
print("loaded too much:", sorted((ours - wanted) | (heavy & sys.modules.keys())))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "loaded too much: []"
