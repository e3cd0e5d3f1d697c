"""Kinds of values in the configuration: durations, sizes, lists, URLs, and what is refused."""

from __future__ import annotations

import pytest

from tests.support.tools.configs import load, refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        (" 500ms ", 500),
        ("10s", 10_000),
        ("10 s", 10_000),
        ("5min", 300_000),
        ("2H", 7_200_000),
        ("1d", 86_400_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert load(f"task.commit.ms={text}").task.commit_ms == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("65536", 65536), ("64KB", 65536), ("64kib", 65536), ("64MB", 64 * 2**20), ("2GB", 2**31), ("70000b", 70000)],
)
def test_sizes(text: str, expected: int) -> None:
    assert load(f"stores.a.rocksdb.write.buffer.bytes={text}").store("a").rocksdb_write_buffer_bytes == expected


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("task.commit.ms=1.5s", "expected a duration"),
        ("task.commit.ms=5 weeks", "unknown unit `weeks`"),
        ("task.commit.ms=" + "9" * 30, "expected a duration"),
        ("task.commit.ms=40000d", "(out of range)"),
        ("task.commit.ms=٣", "expected a duration"),
        ("job.lease.ms=0", "at least 1"),
        ("job.lease.ms=10MB", "unknown unit `MB`"),
        ("job.retry.max=-1", "expected an integer, at least 0 (out of range)"),
        ("job.retry.max=5s", "expected an integer, at least 0"),
        ("job.batch.max.messages=true", "expected an integer, at least 1"),
        ("stores.a.rocksdb.write.buffer.bytes=64", "`64MB`, `2GB` (powers of 1024), at least 65536"),
        ("samza.offset.default=newest", "expected `oldest` or `upcoming`"),
        ("job.name=a b", "`a b` (-c): expected 1 to 128 characters out of `A-Za-z0-9_.-`, not beginning with a dot"),
        ("job.name=.a", "a dot or dash"),
        ("job.id=.1", "a dot or dash"),
        ("task.dead.letter.stream=dead", "expected a stream `system.stream`"),
        ("task.checkpoint.write.versions=3", "one or more of: 2, 1 (unknown: `3`)"),
        ("task.checkpoint.write.versions=2,2", "twice"),
        ("stores.a.restore.factories=blobs", "or your own as `module:Class` (unknown: `blobs`)"),
        ("job.root=ftp://x/y", "unknown scheme `ftp`"),
        ("job.root=s3://", "no bucket"),
        ("job.root=file://x/y", "three slashes"),
        ("job.root=s3://b/x?y", "query"),
        ("job.logged.store.base.dir=file:///x", "expected a path (a URL)"),
        ("stores...object.cache.size=1", "not beginning with a dot or dash"),
        ("stores.a/b.object.cache.size=1", "a store's name is made of"),
        ("systems.a.b.samza.factory=local", "a system's name is made of"),
        ("streams.flights.samza.offset.default=oldest", "not of the form `system.stream`"),
    ],
)
def test_wrong_values(assignment: str, message: str) -> None:
    text = refused(assignment)
    assert message in text
    assert f"`{assignment.partition('=')[0]}`" in text
    assert "(-c)" in text


@pytest.mark.parametrize("key", ["job.retry.max", "task.commit.ms", "job.root", "spark.a"])
def test_a_list_or_a_wrong_type_where_one_value_belongs(key: str) -> None:
    assert f"`{key}` = `[1, 2]` (dict): expected" in refused(**{key: [1, 2]})


def test_an_empty_list_is_refused() -> None:
    assert "an empty list" in refused(**{"stores.backup.factories": []})


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/path/", "s3://bucket/path"),
        ("gs://bucket", "gs://bucket"),
        ("memory://tests", "memory://tests"),
        ("file:///", "file:///"),
        ("file:///a/", "file:///a"),
        ("/a/b c", "file:///a/b%20c"),
    ],
)
def test_the_root(text: str, url: str) -> None:
    assert load(f"job.root={text}").job.root == url
