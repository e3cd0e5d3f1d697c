"""Documents as a later version of Penstock may write them: this one passes over the fields that it does not know, and
refuses a newer format, with what to do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.errors import IncompatibleError, PenstockError
from tests.compat.kept import archive
from tests.compat.kept.job import KeptHome
from tests.compat.kept.play import JOBS, finish, shown

VERSION = archive.this_version()
UNKNOWN = {"since-99": {"any": [1, None]}}
ADVICE = "Run the version that wrote it, or a newer one"
NEWEST = 99
OF_STREAMS = ("streams/*/stream.json", "files/**/_penstock/*/*", "files/**/_penstock/partitions")
OF_HOSTS = ("state/**/copy-*.json", "state/**/complete.json")
Change = Callable[[dict[str, Any]], dict[str, Any]]


def opened(job: str, folder: Path) -> KeptHome:
    return KeptHome(archive.unpack(VERSION, job, folder), JOBS[job]())


def document(data: bytes | str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def documents(home: KeptHome) -> Iterator[tuple[str, bytes, Callable[[bytes], object]]]:
    """Every document of a job, in its root, its streams and on its host, with a function that replaces it. Files
    of stores are left out, because they are named by their hashes."""
    for key in (key for key in home.objects.list("") if "/state/" not in key):
        found, tag = home.objects.get_with_tag(key)
        yield key, found, partial(_replaced, home, key, tag)
    for pattern in (*OF_STREAMS, *OF_HOSTS):
        for path in sorted(home.folder.glob(pattern)):
            if path.is_file():
                yield path.relative_to(home.folder).as_posix(), path.read_bytes(), path.write_bytes


def _replaced(home: KeptHome, key: str, tag: str, data: bytes) -> None:
    assert home.objects.put_if_match(key, data, tag)


def in_markers(value: Any, change: Change) -> Any:
    """The value with all documents in its texts changed: those of tasks, and in these the markers of stores."""
    if isinstance(value, dict):
        return {key: in_markers(own, change) for key, own in value.items()}
    if isinstance(value, str) and (own := document(value)) is not None:
        return json.dumps(change(in_markers(own, change)))
    return value


def with_checksum(record: dict[str, Any]) -> dict[str, Any]:
    content = {key: own for key, own in record.items() if key != "checksum"}
    text = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return {**content, "checksum": f"sha256:{hashlib.sha256(text).hexdigest()}"}


def with_more(found: dict[str, Any]) -> dict[str, Any]:
    """The document with fields that this version does not know, also in what it consists of."""
    more = {**found, **UNKNOWN}
    if "kind" not in found or "body" not in found:
        return {**more, "holder": {**found["holder"], **UNKNOWN}} if "holder" in found else more
    body = in_markers({**found["body"], **UNKNOWN}, with_more_in_values)
    sections = {
        name: {**section, **UNKNOWN, "fields": {**section["fields"], **UNKNOWN}}
        for name, section in body.get("sections", {}).items()
    }
    if found["kind"] == "checkpoint":
        body["sections"] = {**sections, "later": {"fields": UNKNOWN}}
    return with_checksum({**more, "body": body})


def with_more_in_values(found: dict[str, Any]) -> dict[str, Any]:
    """The same for a document in a record. Version 1 of a checkpoint is one of partitions, which are no fields."""
    if all(isinstance(own, dict) for own in found.values()):
        return {key: {**own, **UNKNOWN} for key, own in found.items()}
    return {**found, **UNKNOWN}


@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=() if job in ("outside", "samza") else pytest.mark.slow) for job in JOBS]
)
def test_fields_that_are_not_known_are_passed_over(job: str, tmp_path: Path) -> None:
    """In every document of a job: it is shown as without them, and continued."""
    with closing(opened(job, tmp_path / "home")) as home:
        changed = 0
        for _, data, replace in list(documents(home)):
            if (found := document(data)) is not None:
                replace(orjson.dumps(with_more(found)))
                changed += 1
        assert changed > 10
        assert shown(home) == json.loads((archive.VERSIONS / VERSION / f"{job}.json").read_bytes())
        finish(home)


def test_a_section_that_is_needed_is_refused_where_nobody_knows_it(tmp_path: Path) -> None:
    with closing(opened("samza", tmp_path / "home")) as home:
        *_, (_, data, replace) = [each for each in documents(home) if "/checkpoints/" in each[0]]
        record = orjson.loads(data)
        record["body"]["sections"]["later"] = {"fields": UNKNOWN, "needed": True}
        replace(orjson.dumps(with_checksum(record)))
        with pytest.raises(PenstockError, match="later"):
            finish(home)


def newer(found: dict[str, Any]) -> dict[str, Any]:
    """The document in a format of which this version knows nothing but its number."""
    field = "version" if "changelogSSP" in found else "format"
    if field not in found:
        return found
    made = {field: NEWEST, "since-99": 1}
    return with_checksum({**made, "kind": found["kind"]}) if "checksum" in found and "kind" in found else made


KINDS = [
    ("stores", "checkpoints"), ("samza", "lease/driver"), ("samza", "uid"), ("stores", "owned-streams"),
    ("samza", "stream.json"), ("samza", "_penstock/00"), ("stores", "markers"),
]  # fmt: skip
"""A job that has documents of each kind, and what their keys have in common. Formats of files that a hash names are in
the tests of these files."""
SHOWN_ONLY = ("last-run", "/audit/", "/copy-", "/complete.json")


@pytest.mark.parametrize(("job", "kind"), KINDS)
def test_a_newer_format_is_refused_with_what_to_do(job: str, kind: str, tmp_path: Path) -> None:
    """Whatever document has it. Nothing of the job is changed then, so the version that wrote it goes on."""
    with closing(opened(job, tmp_path / "home")) as home:
        make_newer(home, kind)
        before = {key: home.objects.get(key) for key in home.objects.list("")}
        with pytest.raises(IncompatibleError, match=f"{NEWEST}.*{ADVICE}"):
            finish(home)
        changed = {key for key in before if before[key] != home.objects.get(key)}
        assert {key for key in changed if not key.endswith("last-run")} <= {home.paths.lease, home.paths.uid}


def test_a_newer_format_of_what_is_only_shown_ends_no_job(tmp_path: Path) -> None:
    """Nor does one of a copy of what is elsewhere."""
    with closing(opened("outside", tmp_path / "home")) as home:
        for kind in SHOWN_ONLY:
            make_newer(home, kind)
        finish(home)


def make_newer(home: KeptHome, kind: str) -> None:
    made = [(replace, made_newer(key, data, kind), data) for key, data, replace in list(documents(home))]
    replaced = [(replace, now) for replace, now, data in made if now is not None and now != data]
    assert replaced, f"there is no document of the kind {kind}"
    for replace, now in replaced:
        replace(now)


def made_newer(key: str, data: bytes, kind: str) -> bytes | None:
    """The content of a document of this kind in a newer format; None for others."""
    found = document(data)
    if kind == "markers":
        if found is None or found.get("kind") != "checkpoint":
            return None
        body = in_markers(found["body"], newer)
        return orjson.dumps(with_checksum({**found, "body": body}))
    if kind not in key:
        return None
    return None if found is None else orjson.dumps(newer(found))
