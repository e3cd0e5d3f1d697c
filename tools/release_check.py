"""Builds the last commit as a release, and checks the wheel, the version, the licences and known vulnerabilities.

`make release-check` runs it in the development environment. The SBOM of the dependencies at run time, in CycloneDX's
JSON, is written to `build/penstock.cdx.json`.
"""

from __future__ import annotations

import json
import os
import re
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
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SBOM = ROOT / "build" / "penstock.cdx.json"
EXTRAS = ("kafka", "avro", "protobuf", "json-schema", "registry", "sketches")
"""The extras that a job may use at run time."""
NEEDED = ("penstock/py.typed", "penstock/spark/session/log4j2.properties")
PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"),
    "License :: OSI Approved :: Apache Software License",
    "License :: OSI Approved :: BSD License",
    "License :: OSI Approved :: MIT License",
}
REVIEWED = {
    # The Mozilla licence covers the package's own files. Penstock neither changes nor contains them.
    "orjson": ["MPL-2.0 AND (Apache-2.0 OR MIT)"],
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
    with tempfile.TemporaryDirectory(prefix="penstock-release-") as folder:
        problems = wheel_problems(built_wheel(Path(folder)))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    problems += version_problems(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    document = with_hashes(
        sbom_of_environment(),
        set(runtime_names("penstock-streams", EXTRAS)),
        locked_packages((ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")),
    )
    for component in document["components"]:
        print(f"{component['name']:24}{component['version']:12}{', '.join(licences(component))}")
        problems += licence_problems(component)
    write_sbom(document)
    problems += vulnerabilities(sorted((ROOT / "requirements").glob("*.lock")))
    if problems:
        sys.exit("\n".join(problems))


def built_wheel(folder: Path) -> Path:
    """The wheel of the last commit, built from its sdist."""
    with (folder / "source.tar").open("wb") as archive:
        subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=archive, check=True)
    with tarfile.open(folder / "source.tar") as source:
        source.extractall(folder / "source", filter="data")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(folder / "source")]
    done = subprocess.run(build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}\nthe release cannot be built")
    (wheel,) = folder.glob("*.whl")
    return wheel


def wheel_problems(wheel: Path) -> list[str]:
    """Files that are missing in the wheel, and files that are not the package's."""
    names = zipfile.ZipFile(wheel).namelist()
    information = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    missing = {*NEEDED, f"{information}/licenses/LICENSE"} - set(names)
    foreign = [
        name
        for name in names
        if name.split("/")[0] not in ("penstock", information)
        or re.fullmatch(r"test_.*\.py|conftest\.py", name.split("/")[-1])
    ]
    return [
        *(f"{wheel.name} has no {name}: see `package-data` in pyproject.toml" for name in sorted(missing)),
        *(f"{wheel.name} has {name}, which is not part of the package: see pyproject.toml" for name in foreign),
    ]


def version_problems(version: str, changelog: str) -> list[str]:
    """The newest section of the changelog has to be this version, or unreleased."""
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    if newest is not None and newest[1].strip("[]") in (version, "Unreleased"):
        return []
    return [f"CHANGELOG.md begins with neither `## {version}` nor `## Unreleased`: add the section of this version"]


def runtime_names(name: str, extras: Iterable[str] = ()) -> Iterator[str]:
    """The packages that one needs on this machine, directly or not. A package may be given more than once."""
    for requirement in map(Requirement, distribution(name).requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield canonicalize_name(requirement.name)
            yield from runtime_names(requirement.name, requirement.extras)


def locked_packages(lock: str) -> dict[str, LockedPackage]:
    """The packages of a lock by their names."""
    return {
        canonicalize_name(found[1]): LockedPackage(found[2], tuple(re.findall(r"--hash=sha256:(\w+)", line)))
        for line in lock.replace("\\\n", " ").splitlines()
        if (found := re.match(r"([\w.-]+)==(\S+)", line))
    }


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


def vulnerabilities(locks: Sequence[Path]) -> list[str]:
    """Known vulnerabilities of what is locked, from the first database that answers."""
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
        if unknown:
            print(f"vulnerabilities: {service} does not know {', '.join(unknown)}")
        return vulnerability_problems(packages)
    print(f"vulnerabilities: the scan was skipped, because no database is available here ({'; '.join(reasons)})")
    return []


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
