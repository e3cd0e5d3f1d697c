"""The kernel alone runs a job: three operators, with the systems `local` and `memory`, and nothing else of Penstock."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.support import kernel_alone
from tests.support.tools.places import ROOT


def run(folder: Path, first: int, count: int) -> tuple[list[tuple[str, int]], list[str]]:
    """The output so far, and the modules of Penstock that the process has loaded."""
    program = [sys.executable, str(ROOT / "tests" / "support" / "kernel_alone.py"), str(folder), str(first), str(count)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return [(key, total) for key, total in found["output"]], found["modules"]


def expected(count: int) -> Counter[tuple[str, int]]:
    """A plain computation of all outputs."""
    totals: Counter[str] = Counter()
    found: Counter[tuple[str, int]] = Counter()
    for n in range(count):
        totals[f"k{n % 3}"] += 2 * n
        found[f"k{n % 3}", totals[f"k{n % 3}"]] += 1
    return found


def test_a_job_runs_and_goes_on_with_the_kernel_alone(tmp_path: Path) -> None:
    output, modules = run(tmp_path, 0, 10)
    assert dict(sorted(output, key=lambda each: each[1])) == dict(sorted(expected(10), key=lambda each: each[1]))
    later, _ = run(tmp_path, 10, 20)
    last = {key: max(total for name, total in later if name == key) for key in ("k0", "k1", "k2")}
    assert last == {key: max(total for name, total in expected(30) if name == key) for key in last}
    assert len(later) == 30
    rooms = {kernel_alone.KernelAlone().room(module) for module in modules} - {"base", "api", "kernel", ""}
    assert rooms <= {"testing"}, "the host in this process"


def test_the_readme_lists_the_packages_so_that_each_loads_those_above_it() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "penstock" / "README.md").read_text("utf-8"), re.MULTILINE)
    kernel = {name.removeprefix("penstock.") for name in kernel_alone.rooms()["kernel"]}
    assert sorted(listed) == sorted(kernel - {"wing"}), "`wing` is a module"
    found = kernel_alone.KernelAlone()
    for number, package in enumerate(listed):
        for file in (ROOT / "penstock" / package).rglob("*.py"):
            module = file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
            if found.room(module) == "kernel":
                imported = {each.split(".")[1] for each in _imports(file) if each != "penstock.host.posix"}
                assert imported & set(listed[number + 1 :]) == set(), module


def _imports(file: Path) -> list[str]:
    """The modules of Penstock that a module loads with itself: not those that only a function of it imports."""
    nodes = (node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.ImportFrom))
    return [node.module for node in nodes if node.module is not None and node.module.startswith("penstock.")]
