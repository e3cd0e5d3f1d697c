"""The release workflow: everything that it uses is named by its content, and code of the project gets no right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.tools.places import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
ZIZMOR = Path(sys.executable).with_name("zizmor")


def steps(job: dict[str, Any]) -> str:
    return "\n".join(str(step.get("run", "")) for step in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_the_digest_of_a_version(path: Path) -> None:
    used = re.findall(r"uses: *(.*)", path.read_text(encoding="utf-8"))
    assert used
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_whoever_has_a_right_runs_no_code_of_the_project() -> None:
    assert RELEASE["permissions"] == {}
    rights = {
        name: {right for right, level in job["permissions"].items() if level == "write"}
        for name, job in RELEASE["jobs"].items()
    }
    assert rights == {
        "build": set(),
        "attest": {"id-token", "attestations"},
        "publish": {"id-token"},
        "page": {"contents"},
    }
    for name, job in RELEASE["jobs"].items():
        code = re.findall(r"\bmake\b|penstock\b|setup\.py|-m build", steps(job).replace("penstock.cdx.json", ""))
        assert bool(code) == (name == "build")


def test_what_is_published_was_checked_attested_and_signed() -> None:
    jobs = RELEASE["jobs"]
    assert [job.get("needs") for job in jobs.values()] == [None, "build", "attest", "publish"]
    assert "make release-check REQUIRE_AUDIT=1" in steps(jobs["build"])
    attested = [step["with"] for step in jobs["attest"]["steps"] if "actions/attest@" in step.get("uses", "")]
    assert attested == [
        {"subject-path": "release/dist/*"},
        {"subject-path": "release/dist/*", "sbom-path": "release/penstock.cdx.json"},
    ]
    publishing = steps(jobs["publish"])
    assert publishing.index("pypi-attestations sign release/dist/*") < publishing.index("uv publish")
    assert "--require-hashes -r requirements/release.lock" in publishing
    lock = (ROOT / "requirements" / "release.lock").read_text(encoding="utf-8")
    assert re.findall(r"^(?:uv|pypi-attestations)==", lock, re.MULTILINE) == ["pypi-attestations==", "uv=="]


@pytest.mark.skipif(not ZIZMOR.exists(), reason="zizmor is not installed: `make` installs it")
def test_the_linter_finds_nothing_here_and_something_in_a_careless_workflow(tmp_path: Path) -> None:
    def found(folder: Path) -> int:
        command = [str(ZIZMOR), "--quiet", "--offline", "--strict-collection", "--persona", "pedantic", str(folder)]
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode

    assert found(ROOT / ".github") == 0
    careless = tmp_path / ".github" / "workflows"
    careless.mkdir(parents=True)
    (careless / "release.yml").write_text(
        "on: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n      - uses: actions/checkout@v4\n"
    )
    assert found(tmp_path / ".github") != 0
