"""Builds the last commit as a release, and checks the wheel, the sdist, the version, the changelog, the licences and
known vulnerabilities.

`make release-check` runs it in the development environment. The SBOM of the dependencies at run time, in CycloneDX's
JSON, is written to `build/penstock.cdx.json`, and the wheel and the sdist that were checked to `build/dist`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SBOM = ROOT / "build" / "penstock.cdx.json"
DIST = ROOT / "build" / "dist"
BUILD_LOCK = ROOT / "penstock" / "cli" / "project" / "build.lock"
NOT_AT_RUN_TIME = {"dev", "docs", "demo"}
"""The extras that no job uses. The packages of all others are in the SBOM."""
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
"""The sections of a version in the changelog, in their order."""
PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"),
    "License :: OSI Approved :: Apache Software License",
    "License :: OSI Approved :: BSD License",
    "License :: OSI Approved :: MIT License",
}
REVIEWED = {
    # The Mozilla licence covers the package's own files. Penstock neither changes nor contains them.
    "orjson": ["MPL-2.0 AND (Apache-2.0 OR MIT)"],
    "certifi": ["MPL-2.0", "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)"],
    # Their metadata has only words, and their LICENSE files are Apache-2.0 and BSD-3-Clause.
    "datasketches": [],
    "protobuf": [],
}
"""Licences that were accepted for one package only."""
_UNREACHABLE = re.compile("connect|max retries|resolve|timed out", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A package of a lock."""

    version: str
    sha256: tuple[str, ...]
    """The hashes of every file of this version, for all platforms."""


def main() -> None:
    """Run all checks, and end with status 1 if one of them fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory(prefix="penstock-release-") as folder:
        release = built(Path(folder))
        problems = [
            *wheel_problems(release.wheel, release.package),
            *difference(release.wheel, release.direct),
            *metadata_problems(release.wheel, project["version"], (ROOT / "README.md").read_text(encoding="utf-8")),
        ]
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(release.wheel.parent, DIST)
        print(f"{release.wheel.name}: {release.wheel.stat().st_size:,} bytes, {len(release.package)} files")
    problems += changelog_problems(project["version"], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    extras = project["optional-dependencies"].keys() - NOT_AT_RUN_TIME
    print(f"extras: {', '.join(sorted(extras))}")
    document = with_hashes(
        sbom_of_environment(),
        set(runtime_names("penstock-streams", extras)),
        locked_packages((ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")),
    )
    for component in document["components"]:
        print(f"{component['name']:24}{component['version']:12}{', '.join(licences(component))}")
        problems += licence_problems(component)
    write_sbom(document)
    required = needs_audit(os.environ, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    problems += vulnerabilities([BUILD_LOCK, *sorted((ROOT / "requirements").glob("*.lock"))], required=required)
    if problems:
        sys.exit("\n".join(problems))


@dataclass(frozen=True, slots=True)
class Release:
    """The files of a release, and what they were built from."""

    wheel: Path
    """Built from the sdist."""
    direct: Path
    """A wheel that was built from the commit, without the sdist."""
    package: set[str]
    """The files of the package in the commit."""


def built(folder: Path) -> Release:
    """The release of the last commit."""
    with (folder / "source.tar").open("wb") as archive:
        subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=archive, check=True)
    source = folder / "source"
    with tarfile.open(folder / "source.tar") as archived:
        archived.extractall(source, filter="data")
    package = {path.relative_to(source).as_posix() for path in (source / "penstock").rglob("*") if path.is_file()}
    wheels: list[Path] = []
    for target, options in ((folder / "dist", []), (folder / "direct", ["--wheel"])):
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), *options, str(source)]
        done = subprocess.run(build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            sys.exit(f"{done.stdout}\nthe release cannot be built")
        wheels += target.glob("*.whl")
    wheel, direct = wheels
    return Release(wheel, direct, package)


def wheel_problems(wheel: Path, package: set[str]) -> list[str]:
    """Files of the package that are missing in the wheel, and files that are tests or of something else."""
    information = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = {*package, f"{information}/licenses/LICENSE"} - names
    tests = {name for name in names if re.fullmatch(r"test_.*\.py|conftest\.py", name.split("/")[-1])}
    foreign = tests | {name for name in names - package if name.split("/")[0] != information}
    return [
        *(f"{wheel.name} has no {name}: see `package-data` in pyproject.toml" for name in sorted(missing)),
        *(f"{wheel.name} has {name}, which is not part of the package: see pyproject.toml" for name in sorted(foreign)),
    ]


def difference(wheel: Path, direct: Path) -> list[str]:
    """Files that differ between the wheel that the sdist builds and the one that the commit builds."""
    first, second = (
        {name: archive.read(name) for name in archive.namelist()} for archive in map(zipfile.ZipFile, (wheel, direct))
    )
    names = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    return [f"the sdist builds another wheel than the commit: {', '.join(names)}"] if names else []


def metadata_problems(wheel: Path, version: str, readme: str) -> list[str]:
    """Fields of the metadata that an index would refuse, or that are not what the project says."""
    information = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{information}/METADATA")
        module = archive.read("penstock/__init__.py").decode()
    try:
        found = Metadata.from_email(text)
    except ExceptionGroup as group:
        return [f"the metadata is not valid: {error}" for error in group.exceptions]
    facts: dict[str, tuple[object, object]] = {
        "version": (str(found.version), version),
        "`penstock.__version__`": (re.findall(r'^__version__ = "(.*)"$', module, re.MULTILINE), [version]),
        "description": ((found.description or "").strip(), readme.strip()),
        "type of the description": (found.description_content_type, "text/markdown"),
        "licence": (found.license_expression, "Apache-2.0"),
        "classifier `Typing :: Typed`": ("Typing :: Typed" in (found.classifiers or ()), True),
    }
    return [
        f"{name} in the wheel is {is_!r:.80}, and not {expected!r:.80}"
        for name, (is_, expected) in facts.items()
        if is_ != expected
    ]


def changelog_problems(version: str, changelog: str) -> list[str]:
    """The newest version of the changelog has to be this one, or unreleased, and each one has its sections in order."""
    _, *versions = re.split(r"^## ", changelog, flags=re.MULTILINE)
    if not versions or versions[0].split()[0].strip("[]") not in (version, "Unreleased"):
        return [f"CHANGELOG.md begins with neither `## {version}` nor `## Unreleased`: add the section of this version"]
    problems = []
    for text in versions:
        name, sections = text.split()[0], re.findall(r"^### (.*)$", text, re.MULTILINE)
        if not sections or sections != [section for section in SECTIONS if section in sections]:
            problems.append(
                f"CHANGELOG.md has the sections {', '.join(sections) or 'none'} in `{name}`: they have to be some of "
                f"{', '.join(SECTIONS)}, once each and in this order"
            )
    return problems


def runtime_names(name: str, extras: Iterable[str] = ()) -> Iterator[str]:
    """The packages that one needs on this machine, directly or not. A package may be given more than once."""
    for requirement in map(Requirement, distribution(name).requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield canonicalize_name(requirement.name)
            yield from runtime_names(requirement.name, requirement.extras)


def locked_packages(lock: str) -> dict[str, LockedPackage]:
    """The packages of a lock by their names: those for this Python and this machine."""
    found: dict[str, LockedPackage] = {}
    for line in lock.replace("\\\n", " ").splitlines():
        if re.match(r"[\w.-]+==", line):
            needed = Requirement(line.partition("--hash=")[0])
            if needed.marker is None or needed.marker.evaluate():
                (version,) = (each.version for each in needed.specifier)
                found[canonicalize_name(needed.name)] = LockedPackage(
                    version, tuple(re.findall(r"--hash=sha256:(\w+)", line))
                )
    return found


def sbom_of_environment() -> dict[str, Any]:
    """The SBOM of everything that is installed here."""
    commit_time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    command = [*_program("cyclonedx-py"), "environment", "--output-reproducible", "--mc-type", "library"]
    done = subprocess.run(
        [*command, "--pyproject", "pyproject.toml", sys.executable],
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": commit_time},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def with_hashes(document: Mapping[str, Any], names: set[str], locked: Mapping[str, LockedPackage]) -> dict[str, Any]:
    """The part of an SBOM that is about these packages, with the hashes of their files."""
    components = [each for each in document["components"] if canonicalize_name(each["name"]) in names]
    if absent := names - {canonicalize_name(each["name"]) for each in components}:
        sys.exit(f"{', '.join(sorted(absent))}: not installed here, run `make` again")
    for each in components:
        package = locked.get(canonicalize_name(each["name"]))
        if package is None or package.version != each["version"]:
            sys.exit(f"{each['name']} {each['version']} is not the locked version: run `make lock`, then `make` again")
        if "purl" not in each:
            sys.exit(
                f"{each['name']} was installed from a file, not from an index: run `make clean`, then `make` again"
            )
        each.setdefault("externalReferences", []).append(
            {
                "type": "distribution",
                "url": each["purl"],
                "comment": "every file of this version that may be installed",
                "hashes": [{"alg": "SHA-256", "content": sha256} for sha256 in package.sha256],
            }
        )
    kept = {document["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in components)}
    graph = [
        {**each, "dependsOn": [ref for ref in each.get("dependsOn", []) if ref in kept]}
        for each in document["dependencies"]
        if each["ref"] in kept
    ]
    return {**document, "components": components, "dependencies": graph}


def write_sbom(document: Mapping[str, Any]) -> None:
    """Write the SBOM, if it is valid."""
    text = json.dumps(document, indent=2) + "\n"
    from cyclonedx.validation.json import JsonStrictValidator  # takes seconds

    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"the SBOM is not valid: {error}")
    SBOM.parent.mkdir(exist_ok=True)
    SBOM.write_text(text, encoding="utf-8")
    print(f"SBOM: {SBOM.relative_to(ROOT)}, {len(document['components'])} packages")


def licences(component: Mapping[str, Any]) -> list[str]:
    """The licences that a package declares: names, ids or expressions of SPDX, or classifiers."""
    return [
        each.get("expression") or each["license"].get("id") or each["license"]["name"]
        for each in component.get("licenses", ())
    ]


def licence_problems(component: Mapping[str, Any]) -> list[str]:
    """A licence that is neither permissive nor reviewed. Each id in an expression has to be permissive, even if it is
    only an alternative."""
    name, found = component["name"], licences(component)
    if found == REVIEWED.get(name) or (found and all(map(_is_permissive, found))):
        return []
    licence = f"the licence {', '.join(found)}, which is not permissive" if found else "no licence in its metadata"
    use = "use another package, or review it and add it to REVIEWED in tools/release_check.py"
    return [f"{name} {component['version']} has {licence}: {use}"]


def _is_permissive(licence: str) -> bool:
    return licence in PERMISSIVE or set(re.findall(r"[^\s()]+", licence)) - {"AND", "OR"} <= PERMISSIVE


def needs_audit(environment: Mapping[str, str], changelog: str) -> bool:
    """True if the check is that of a release, which is not made without a look for known vulnerabilities: somebody says
    so with `REQUIRE_AUDIT=1`, or the changelog begins with a version."""
    newest = re.search(r"^## \[?(.*)", changelog, re.MULTILINE)
    return environment.get("REQUIRE_AUDIT", "0") not in ("", "0") or not (newest and newest[1].startswith("Unreleased"))


def vulnerabilities(locks: Sequence[Path], *, required: bool) -> list[str]:
    """Known vulnerabilities of what is locked, from the first database that answers.

    Args:
        locks: the locks.
        required: a package that could not be looked up is a problem.
    """
    reasons = []
    files = [argument for lock in locks for argument in ("-r", str(lock))]
    for service in ("pypi", "osv"):
        options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json", "-s", service]
        done = subprocess.run([*_program("pip-audit"), *options, *files], capture_output=True, text=True, check=False)
        if not done.stdout:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            if not _UNREACHABLE.search(said):
                return [f"pip-audit failed: {said}"]
            reasons.append(f"{service} cannot be reached")
            continue
        packages = json.loads(done.stdout)["dependencies"]
        unknown = [each["name"] for each in packages if "skip_reason" in each]
        if len(unknown) == len(packages):
            reasons.append(f"{service} answers for no package")
            continue
        print(f"vulnerabilities: {len(packages) - len(unknown)} packages looked up in {service}")
        skipped = f"{service} does not know {', '.join(unknown)}" if unknown else ""
        return [*vulnerability_problems(packages), *_skipped(skipped, required=required)]
    skipped = f"the scan was skipped, because no database is available here ({'; '.join(reasons)})"
    return _skipped(skipped, required=required)


def _skipped(what: str, *, required: bool) -> list[str]:
    if what and not required:
        print(f"vulnerabilities: {what}. This is no check of a release: that is `make release-check REQUIRE_AUDIT=1`")
    return [f"{what}: a release needs the scan, so run the check where a database answers"] if what and required else []


def vulnerability_problems(packages: Iterable[Mapping[str, Any]]) -> list[str]:
    """The vulnerabilities in a report of pip-audit."""
    return [
        f"{package['name']} {package['version']} has the vulnerability {found['id']}, "
        f"repaired in {', '.join(found['fix_versions']) or 'no version'}: run `make lock UPGRADE=--upgrade`"
        for package in packages
        for found in package.get("vulns", ())
    ]


def _program(name: str) -> list[str]:
    return [str(Path(sys.executable).with_name(name))]


if __name__ == "__main__":
    main()
