"""Every command that the README, the documentation and the page on benchmarks show is run by a test, or a reason says
why none can."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.cli.test_demos import DEMOS
from tests.support.tools.places import ROOT
from tests.support.tools.shown_commands import shown
from tests.unit.test_benchmarks import ON_BROKER, ON_SPARK, QUICK
from tools.commands_page import commands

PAGES = [
    "README.md",
    "benchmarks/README.md",
    *(str(f.relative_to(ROOT)) for f in sorted((ROOT / "docs").rglob("*.md"))),
]
NAMES = {name for name, _ in commands()}
RUN = {
    "kafka-acls.sh": "tests/kafka/test_kafka_access.py::test_what_the_page_asks_for_is_enough",
    "make bench-scale": "tests/unit/test_benchmarks.py::test_the_figures_of_the_page_on_scale_are_replaced",
    "make demo-kafka": "tests/integration/cli/test_kafka_demo.py::test_the_demo_on_a_few_flights",
    "make demo-pyspark": "tests/integration/queries/test_pyspark_page.py::test_the_demo_on_a_few_flights",
    "make demo DASHBOARD=1": "tests/integration/cli/test_demos.py::test_a_demo_with_its_page_ends_with_ctrl_c",
    "make docs": "tests/unit/tools/test_docs_site.py::test_the_site_has_every_page_and_every_public_name",
    "penstock audit runs": "tests/unit/test_wing.py",
    "penstock --install-completion": "tests/unit/cli/shared/test_cli_help.py::test_bash_completes_with_its_script",
    "python app.py": "tests/integration/spark/test_spark_submit.py::"
    "test_what_spark_defaults_say_is_kept_without_spark_submit",
    "python -m build": "tests/integration/packaging/test_wheel.py::test_wheel_and_sdist_have_all_files_of_the_package",
    "spark-class": "tests/cluster/test_submit.py",
    "spark-submit": "tests/integration/spark/test_spark_submit.py::"
    "test_a_job_with_py_files_stops_at_a_sigterm_to_spark_submit",
}
"""By the beginning of a command: the test that runs it, or what it starts."""
RUN_WHOLE = {
    "README.md": "tests/integration/storage/test_pages_on_spark.py::test_the_commands_of_the_readme",
    "docs/databases.md": "tests/integration/databases/test_databases_page.py::test_the_complete_example",
    "docs/drain.md": "tests/integration/drain/test_drain_shown.py::test_the_commands_of_the_page_as_they_are_written",
    "docs/examples/": "tests/integration/storage/test_pages_on_spark.py::test_an_example_to_copy",
    "docs/files.md": "tests/integration/queries/test_state_frames.py::test_the_examples_of_folders_of_files",
    "docs/kafka.md": "tests/integration/storage/test_pages_on_spark.py::test_the_example_of_kafka",
    "docs/lakes.md": "tests/integration/storage/test_pages_on_spark.py::test_the_example_of_lakes",
    "docs/learn/first_job.md": "tests/integration/learn/test_tutorials.py::test_the_first_job",
    "docs/learn/from_kafka.md": "tests/integration/learn/test_tutorials.py::test_from_kafka",
    "docs/learn/from_pyspark.md": "tests/integration/learn/test_tutorials.py::test_from_pyspark",
    "docs/learn/from_samza.md": "tests/integration/learn/test_tutorials.py::test_from_samza",
    "docs/projects.md": "tests/integration/packaging/test_wheel.py::test_the_two_commands_of_a_new_project_work",
    "docs/standbys.md": "tests/integration/storage/test_pages_on_spark.py::test_the_example_of_standbys",
    "docs/systems.md": "tests/unit/tools/test_pages.py::test_the_example_of_systems",
}
"""Pages, and folders of pages, whose example runs as written, with the shell's programs around it."""
NOT_RUN = {
    "(umask 077": "the shell and OpenSSL write a file of random text",
    ". .venv/bin/activate": "Python's own",
    "docker": "needs Docker; tests/unit/tools/test_kubernetes_manifests.py reads the Dockerfile",
    "export AWS_": "sets the keys of an account",
    "kafka-configs.sh": "a program of Kafka; tests/kafka/test_kafka_timestamps.py sets the same with its API",
    "kafka-topics.sh": "a program of Kafka; tests/kafka makes such topics with its API",
    "kubectl": "needs a cluster; tests/unit/tools/test_kubernetes_manifests.py checks what the page names",
    "make bench": "runs each benchmark at its full size",
    "make clean": "deletes the environment that the tests run in",
    "make lock": "asks PyPI for new versions",
    "make test": "runs the tests",
    "pip install": "asks PyPI; tests/integration/packaging installs the wheel of the working tree",
    "python -m venv": "Python's own",
    "uv pip compile": "asks PyPI",
}
"""By the beginning of a command: why no test runs it."""


def the_commands() -> list[tuple[str, str]]:
    """Each command of each page once."""
    return [(page, each) for page in PAGES for each in dict.fromkeys(shown((ROOT / page).read_text("utf-8")))]


def texts(node: ast.Call | ast.List | ast.Tuple) -> Iterator[str]:
    """The words of a call, as far as they are literals."""
    for each in node.args if isinstance(node, ast.Call) else node.elts:
        value = each.value if isinstance(each, ast.Starred) else each
        if isinstance(value, ast.List | ast.Tuple):
            yield from texts(value)
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from value.value.split()
        elif isinstance(value, ast.JoinedStr):
            yield from "".join(
                str(part.value) if isinstance(part, ast.Constant) else "_" for part in value.values
            ).split()
        else:
            yield "_"


def called(path: Path, source: str) -> set[str]:
    """The commands of Penstock that a test file calls. A test of one group of commands may name it once for all."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call | ast.List | ast.Tuple):
            words = list(texts(node))
            pairs = {" ".join(each) for each in pairwise(words)}
            first = {*words[:1], *(b for a, b in pairwise(words) if a in {"penstock.cli", "_"})}
            group = path.parent.name if path.parent.parent.name == "cli" else ""
            found |= NAMES & {*pairs, *first, *(f"{group} {word}" for word in first)}
    return found


def beginning(command: str, register: dict[str, str]) -> str:
    """The entry for a command: the longest that it begins with."""
    return max((each for each in register if command.startswith(each)), key=len, default="")


def benchmarks() -> set[str]:
    return {name.removesuffix(".__main__") for name in (*QUICK, *ON_SPARK, *ON_BROKER)}


@pytest.fixture(scope="module")
def used() -> set[str]:
    """The commands that tests call. Tests of commands are read first, and others only for what those do not call."""
    found = set[str]()
    for path in sorted((ROOT / "tests").rglob("test_*.py"), key=lambda path: path.parent.parent.name != "cli"):
        source = path.read_text("utf-8")
        if any(all(word in source for word in name.split()) for name in NAMES - found):
            found |= called(path, source)
    return found


def runs(page: str, command: str, used: set[str]) -> bool:
    """True if a test runs the command, or there is a reason why none does."""
    program, *words = command.split()
    if benchmark := re.match(r"python -m benchmarks\.(\w+)", command):
        return benchmark[1] in benchmarks()
    if beginning(command, RUN) or beginning(command, NOT_RUN):
        return True
    if program == "penstock":
        return bool(used & {" ".join(words[:2]), *words[:1]})
    if program == "make":
        return " ".join(words) in DEMOS
    return bool(beginning(page, RUN_WHOLE)) and not command.startswith("python -m")


def test_every_command_is_run(used: set[str]) -> None:
    found = the_commands()
    assert len(found) > 200
    assert [f"{page}: {command}" for page, command in found if not runs(page, command, used)] == []


def test_the_register_has_nothing_but_what_pages_show() -> None:
    found = the_commands()
    for register in (RUN, NOT_RUN):
        needed = {beginning(command, register) for _, command in found}
        assert set(register) - needed == set()
    assert set(RUN_WHOLE) - {beginning(page, RUN_WHOLE) for page, _ in found} == set()


@pytest.mark.parametrize("named", sorted({*RUN.values(), *RUN_WHOLE.values()}))
def test_the_tests_of_the_register_exist(named: str) -> None:
    file, _, name = named.partition("::")
    assert f"def {name}" in (ROOT / file).read_text("utf-8")


def test_every_benchmark_runs_at_its_smallest_size() -> None:
    """All of `make bench`, and all with a section of the page, whether a block names them or not."""
    (names,) = re.findall(r"^BENCHMARKS := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    titles = re.findall(r"^## `(\w+)`", (ROOT / "benchmarks" / "README.md").read_text("utf-8"), re.MULTILINE)
    assert {*names.replace("\\", "").split(), *titles} - benchmarks() <= {"scale"}


def test_a_command_that_nothing_runs_is_found(used: set[str]) -> None:
    page = (
        "`make coffee`\n\n"
        "```sh\npenstock brew pot --strong   # black\necho 'a | b\nc' | penstock stream publish in "
        "\\\n  --file -\n```\n\n"
        "```console\n$ python -m benchmarks.coffee\n3 cups\n```\n\n"
        "```\npenstock status [JOB]\n```\n"
    )
    found = shown(page)
    assert found == [
        "make coffee",
        "penstock brew pot --strong",
        "echo 'a | b\nc'",
        "penstock stream publish in --file -",
        "python -m benchmarks.coffee",
    ]
    assert [each for each in found if runs("docs/a.md", each, used)] == ["penstock stream publish in --file -"]
