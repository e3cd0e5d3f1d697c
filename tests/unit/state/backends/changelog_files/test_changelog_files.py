"""Markers and lineages of the changelog files backend, and the files of two epochs next to each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError, PenstockError
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import StoreMarker
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory, Runs
from penstock.state.backends.changelog_files.versions import ChangelogMarker, DeltaHeader, encode_delta
from penstock.state.backends.registry import backend_factory
from penstock.testing.state_backend_contract import BackendHarness
from tests.support.tools.fixtures import fixture_of

FOLDER = "contract-1/state/first/0"


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    store = open_store(f"memory://{id(request)}-{request.node.nodeid}")
    yield store
    store.close()


harness = fixture_of(lambda objects, tmp_path: BackendHarness(ChangelogFilesFactory(), objects, tmp_path, "memory"))


def commits(harness: BackendHarness, epoch: int, before: dict[str, str] | None, numbers: range) -> dict[str, str]:
    task, markers = harness.backup(epoch, before), before or {}
    for number in numbers:
        markers = task.commit(first={b"%d" % number: b"of epoch %d" % epoch})
    return markers


def content(*parts: tuple[int, range]) -> dict[bytes, bytes]:
    return {b"%d" % number: b"of epoch %d" % epoch for epoch, numbers in parts for number in numbers}


def test_next_lengthens_the_last_run_or_starts_one() -> None:
    marker = ChangelogMarker()
    for epoch in (1, 1, 1, 4, 4, 9):
        marker = marker.next(epoch)
    assert marker == ChangelogMarker(6, ((1, 1, 3), (4, 4, 5), (9, 6, 6)))
    assert marker.epoch == 9
    assert list(marker.deltas()) == [(1, 1), (2, 1), (3, 1), (4, 4), (5, 4), (6, 9)]
    assert (ChangelogMarker().epoch, list(ChangelogMarker().deltas())) == (0, [])


@given(st.lists(st.integers(1, 5), max_size=40).map(sorted))
def test_a_marker_round_trips(epochs: list[int]) -> None:
    marker = ChangelogMarker()
    for epoch in epochs:
        marker = marker.next(epoch)
    assert ChangelogMarker.parse(marker.serialize()) == marker
    assert [epoch for _, epoch in marker.deltas()] == epochs
    assert [version for version, _ in marker.deltas()] == list(range(1, len(epochs) + 1))


def test_a_marker_as_it_is_written() -> None:
    text = '{"format":1,"version":3,"epoch":2,"lineage":[[1,1,2],[2,3,3]]}'
    assert ChangelogMarker(3, ((1, 1, 2), (2, 3, 3))).serialize() == text


@pytest.mark.parametrize(
    ("version", "lineage", "said"),
    [
        (3, [[1, 1, 1], [2, 3, 3]], "a gap before version 3"),
        (3, [[1, 2, 3]], "a gap before version 2"),
        (3, [[1, 1, 2], [2, 2, 3]], "a gap before version 2"),
        (1, [[1, 1, 2]], "ends at version 2"),
        (3, [[1, 1, 2]], "ends at version 2"),
        (1, [], "ends at version 0"),
        (0, [[1, 1, 0]], "a gap before version 1"),
        (2, [[1, 1]], "is not a marker"),
        (2, [["x", 1, 2]], "is not a marker"),
        (2, 7, "is not a marker"),
    ],
)
def test_a_lineage_with_a_gap_is_refused(version: int, lineage: Any, said: str) -> None:
    epoch = lineage[-1][0] if isinstance(lineage, list) and lineage else 0
    text = orjson.dumps({"format": 1, "version": version, "epoch": epoch, "lineage": lineage}).decode()
    with pytest.raises(CorruptError, match=said):
        ChangelogMarker.parse(text)


def test_a_marker_of_a_newer_format_is_refused_as_such() -> None:
    with pytest.raises(IncompatibleError, match="format 2"):
        ChangelogMarker.parse('{"format":2,"version":1,"epoch":1,"lineage":[[1,1,1]]}')


def test_the_names_carry_version_and_epoch(harness: BackendHarness, objects: ObjectStore) -> None:
    commits(harness, 5, commits(harness, 2, None, range(1, 3)), range(3, 5))
    assert objects.list(FOLDER) == [f"{FOLDER}/{name}.delta" for name in ("1.2", "2.2", "3.5", "4.5")]


def test_commit_8_fails_the_next_epoch_commits_another_8(harness: BackendHarness, objects: ObjectStore) -> None:
    seventh = commits(harness, 1, None, range(1, 8))
    failed = commits(harness, 1, seventh, range(8, 9))
    other = commits(harness, 2, seventh, range(8, 10))
    assert {f"{FOLDER}/8.1.delta", f"{FOLDER}/8.2.delta"} < set(objects.list(FOLDER))
    assert ChangelogMarker.parse(other["first"]).lineage == ((1, 1, 7), (2, 8, 9))
    assert harness.restore(other["first"]) == content((1, range(1, 8)), (2, range(8, 10)))
    assert harness.restore(failed["first"]) == content((1, range(1, 9)))
    objects.delete(f"{FOLDER}/8.1.delta")
    assert harness.restore(other["first"]) == content((1, range(1, 8)), (2, range(8, 10)))


def test_upload_of_commit_c_completes_after_a_rewind_to_c_minus_1(harness: BackendHarness) -> None:
    """The old epoch's upload hangs, a new epoch rewinds and commits C again, then the old one goes through."""
    before = commits(harness, 1, None, range(1, 5))
    old = harness.backup(1, before)
    again = commits(harness, 2, before, range(5, 6))
    late = old.commit(first={b"5": b"of epoch 1"})
    assert harness.restore(again["first"]) == content((1, range(1, 5)), (2, range(5, 6)))
    assert late != again
    following = commits(harness, 3, again, range(6, 7))
    assert harness.restore(following["first"]) == content((1, range(1, 5)), (2, range(5, 6)), (3, range(6, 7)))


def test_the_same_upload_twice_is_one(harness: BackendHarness, objects: ObjectStore) -> None:
    first = commits(harness, 1, None, range(1, 3))
    before = {key: objects.get(key) for key in objects.list("")}
    assert commits(harness, 1, None, range(1, 3)) == first
    assert {key: objects.get(key) for key in objects.list("")} == before


def test_the_same_name_with_other_content_is_refused(harness: BackendHarness, objects: ObjectStore) -> None:
    commits(harness, 1, None, range(1, 2))
    before = objects.get(f"{FOLDER}/1.1.delta")
    with pytest.raises(PenstockError, match=r"1\.1\.delta` exists with other content: two containers write as epoch 1"):
        harness.backup(1).commit(first={b"another": b"value"})
    assert objects.get(f"{FOLDER}/1.1.delta") == before


def test_a_missing_delta_is_an_error_and_never_an_older_state(harness: BackendHarness, objects: ObjectStore) -> None:
    markers = commits(harness, 1, None, range(1, 6))
    for number in range(1, 6):
        key = f"{FOLDER}/{number}.1.delta"
        data = objects.get(key)
        objects.delete(key)
        with pytest.raises(NotFoundError, match=f"`{key}` is missing: version 5 of store `first` of task 0"):
            harness.restore(markers["first"])
        objects.put_if_absent(key, data)


def test_a_delta_under_another_ones_name_is_corrupt(harness: BackendHarness, objects: ObjectStore) -> None:
    markers = commits(harness, 1, None, range(1, 3))
    objects.delete(f"{FOLDER}/2.1.delta")
    objects.put_if_absent(f"{FOLDER}/2.1.delta", encode_delta(DeltaHeader(2, 7, ((7, 1, 2),)), {b"x": b"1"}))
    with pytest.raises(CorruptError, match=r"2\.1\.delta` holds version 2 of epoch 7"):
        harness.restore(markers["first"])


def test_the_registry() -> None:
    assert backend_factory("changelog-files").name == "changelog-files"
    with pytest.raises(ConfigError, match="`blobs` is not known; known: changelog-files, "):
        backend_factory("blobs")


def test_a_marker_that_lost_a_delta_is_not_continued(harness: BackendHarness, objects: ObjectStore) -> None:
    """Another backend restored the store: this one begins anew, so that its next marker restores again."""
    markers = commits(harness, 1, None, range(3))
    whole = harness.restore(markers["first"])
    objects.delete(f"{FOLDER}/2.1.delta")
    task = harness.backup(2, markers, content={"first": whole, "second": {}})
    again = task.commit_changes({"first": {b"k": b"new"}}, complete=True)
    assert harness.restore(again["first"]) == {**whole, b"k": b"new"}


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(0, 6)), max_size=8), st.integers(1, 3))
def test_runs_are_sets_of_versions(runs: list[tuple[int, int, int]], epoch: int) -> None:
    markers = []
    for of, first, more in runs:  # a lineage of its own for each, with dead versions before it
        lineage = ((9, 1, first - 1),) * (first > 1) + ((of, first, first + more),)
        markers.append(StoreMarker("s", 0, ChangelogMarker(first + more, lineage).serialize()))
    covered = {v for of, first, more in runs if of == epoch for v in range(first, first + more + 1)}
    assert list(Runs(markers).uncovered(("s", 0, epoch), 1, 20)) == [v for v in range(1, 21) if v not in covered]
