"""The changelog stream backend: markers, names of streams, the admin."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admin.stream.publish import PublishOptions, publish
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, CorruptError, FencedError, IncompatibleError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import AdminContext, Retention, StoreMarker
from penstock.state.backends.changelog_partition import ChangelogRange
from penstock.state.backends.changelog_stream import ChangelogStreamAdmin, ChangelogStreamFactory
from penstock.state.backends.registry import backend_factory
from penstock.system.base import OffsetRange, System, WriterIdentity
from penstock.system.memory import MemorySystem
from tests.support.stores.changelog_stream import SSP, STREAM, config, make_harness

# -- markers --


def test_a_marker_is_samzas_with_one_field_more() -> None:
    marker = ChangelogRange(SystemStreamPartition("kafka", "orders-changelog", 3), 1000, 1017)
    assert marker.serialize() == (
        '{"version":1,"changelog-ssp":{"system":"kafka","partition":3,"stream":"orders-changelog","keyBucket":-1},'
        '"changelog-offset":"1017","generation-offset":"1000"}'
    )
    assert ChangelogRange.parse(marker.serialize()) == marker
    empty = ChangelogRange(SSP, 5, None)
    assert orjson.loads(empty.serialize())["changelog-offset"] is None
    assert ChangelogRange.parse(empty.serialize()) == empty
    assert (marker.range, empty.range) == (OffsetRange(marker.ssp, 1000, 1018), OffsetRange(SSP, 5, 5))


def test_a_marker_that_samza_wrote() -> None:
    """Its generation begins with the stream; the key bucket may be missing, unknown fields are ignored."""
    text = (
        '{"version":1,"changelog-ssp":{"system":"kafka","stream":"a.b","partition":3},"changelog-offset":"7","new":[]}'
    )
    assert ChangelogRange.parse(text) == ChangelogRange(SystemStreamPartition("kafka", "a.b", 3), 0, 7)


@pytest.mark.parametrize(
    "fields",
    [
        {"changelog-offset": "x"},
        {"changelog-offset": "4"},
        {"changelog-ssp": None},
        {"changelog-ssp": "local.s.1"},
        {"changelog-ssp": {"system": "s", "stream": "t"}},
        {"generation-offset": "-1"},
        {"generation-offset": None},
        {"version": "x"},
    ],
    ids=str,
)
def test_a_damaged_marker(fields: dict[str, object]) -> None:
    good = orjson.loads(ChangelogRange(SSP, 5, 9).serialize())
    with pytest.raises(CorruptError, match="marker"):
        ChangelogRange.parse(orjson.dumps(good | fields).decode())


def test_a_marker_of_a_newer_version() -> None:
    with pytest.raises(IncompatibleError, match=r"format 2; .* up to 1\. Run the version that wrote it, or a newer"):
        ChangelogRange.parse(ChangelogRange(SSP, 0, 1).serialize().replace('"version":1', '"version":2'))


# -- configuration --


def test_the_stream_of_a_store() -> None:
    assert config().store("a.b").changelog == SystemStream("local", "contract-1-a.b-changelog")
    given = config(
        **{"systems.disk.samza.factory": "local", "stores.a.changelog": "disk.my.log", "stores.b.changelog": "plain"}
    )
    assert given.store("a").changelog == SystemStream("disk", "my.log")
    assert given.store("b").changelog == SystemStream("local", "plain")
    assert given.flat()["stores.b.changelog"] == "local.plain"
    with pytest.raises(ConfigError, match=r"`stores\.a\.changelog` .*there is no system `kafka`; known: local"):
        config(**{"stores.a.changelog": "kafka.x"})
    with pytest.raises(ConfigError, match="or the name of one of the system `local`"):
        config(**{"stores.a.changelog": "kafka."})


def test_the_name() -> None:
    assert backend_factory("changelog-stream").name == "changelog-stream"
    assert config(**{"stores.backup.factories": "changelog-stream"}).store("a").restore_factories == (
        "changelog-stream",
    )


# -- the admin --


def admin_of(system: System, tasks: int = 2, settings: JobConfig | None = None) -> ChangelogStreamAdmin:
    objects = open_store("memory://unused")
    context = AdminContext(
        objects, JobPaths("contract", "1"), tasks, ("first", "second"), settings or config(), {"local": system}
    )
    return ChangelogStreamFactory().admin(context)


def test_resources_are_made_once_and_fenced(system: System) -> None:
    admin = admin_of(system)
    for epoch in (1, 1, 4):
        admin.create_resources(epoch)
        admin.validate_resources()
    with pytest.raises(FencedError, match=r"epoch 4 has taken over.*another `job\.id`"):
        admin.create_resources(3)
    with pytest.raises(FencedError):
        system.writer(WriterIdentity("contract-1/state", 3)).append(SSP, [])
    admin.close()


def job_admin(
    system: System,
    uid: str,
    settings: JobConfig,
    store: str = "first",
    name: str = "contract",
    restorable: Sequence[StoreMarker] = (),
) -> ChangelogStreamAdmin:
    objects, systems = open_store("memory://unused"), {"local": system}
    return ChangelogStreamFactory().admin(
        AdminContext(objects, JobPaths(name, "1"), 2, (store,), settings, systems, uid, lambda: restorable)
    )


def test_a_stream_has_one_owner_among_all_jobs(system: System) -> None:
    """Another job, a job of the same name in another root, and another store of the job itself."""
    shared = config(**{"stores.first.changelog": "shared", "stores.second.changelog": "own"})
    swapped = config(**{"stores.second.changelog": "shared"})
    owner = job_admin(system, "a", shared)
    owner.create_resources(1)
    others = {
        "job other-1 (uid b), store first": job_admin(system, "b", shared, name="other"),
        "job contract-1 (uid c), store first": job_admin(system, "c", shared),
        "job contract-1 (uid a), store second": job_admin(system, "a", swapped, "second"),
    }
    for who, admin in others.items():
        with pytest.raises(ConfigError) as refused:
            admin.create_resources(5)
        for part in (
            "`local.shared`",
            "another owner: job contract-1 (uid a), store first",
            f"This is {who}",
            "`penstock stream delete local.shared`",
        ):
            assert part in str(refused.value)
    owner.create_resources(2)
    with pytest.raises(ConfigError, match="is a changelog"):
        publish(system, "shared", "-", PublishOptions())


def test_a_stream_with_messages_of_somebody_else_is_not_taken_over(system: System) -> None:
    other = StoreMarker("first", 0, ChangelogRange(SystemStreamPartition("local", "other", 0), 0, 9).serialize())
    with closing(system.admin()) as streams, closing(system.writer(None)) as writer:
        streams.create_stream(STREAM, 2)
        writer.append(SystemStreamPartition("local", STREAM, 1), [(0, b"k", b"precious")])
        for restorable in ((), (other,)):
            refused = job_admin(system, "a", config(), restorable=restorable)
            with pytest.raises(ConfigError) as error:
                refused.create_resources(1)
            for part in (f"`local.{STREAM}` of store `first` has messages", "(partition 1)", "checkpoint import"):
                assert part in str(error.value)
            assert streams.owner(STREAM) is None, "the stream can still be given to somebody else"


def test_a_stream_that_a_checkpoint_names_is_taken_over_with_its_messages(system: System) -> None:
    """Samza wrote it, and its checkpoint was imported. Once the stream has an owner, no checkpoint is looked at."""
    marker = StoreMarker("first", 0, ChangelogRange(SSP, 0, None).serialize())
    with closing(system.admin()) as streams, closing(system.writer(None)) as writer:
        streams.create_stream(STREAM, 2)
        writer.append(SystemStreamPartition("local", STREAM, 1), [(0, b"k", b"precious")])
        job_admin(system, "a", config(), restorable=[marker]).create_resources(1)
        assert streams.owner(STREAM) == "job contract-1 (uid a), store first"
    job_admin(system, "a", config()).create_resources(2)


def test_a_copy_does_not_compact_the_originals_stream(system: System) -> None:
    original, copy = (job_admin(system, uid, config()) for uid in ("a", "b"))
    original.create_resources(1)
    writer = system.writer(WriterIdentity("contract-1/state", 1))
    writer.append(SSP, [(0, b"k", b"%d" % n) for n in range(10)])
    marker = StoreMarker("first", 0, ChangelogRange(SSP, 0, 9).serialize())
    plan = Retention(1, (marker,), (), sweep=True)
    assert copy.collect(plan, dry_run=False).names == ()
    assert original.collect(plan, dry_run=False).names != ()


names = st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,6}", fullmatch=True)
ids = st.from_regex(r"[a-z0-9_][a-z0-9_.]{0,3}", fullmatch=True)


def default(name: str, job_id: str, store: str) -> str:
    return load_config(overrides={"job.name": name, "job.id": job_id}, environ={}).store(store).changelog.stream


def test_default_names_that_collided() -> None:
    assert default("shop", "1", "eu-2-totals") != default("shop-1-eu", "2", "totals")
    assert default("shop-1-eu", "2", "totals") == "shop-1-eu-2-totals-changelog"


jobs = st.tuples(names, ids, names)


@given(jobs, jobs)
def test_a_default_name_is_of_one_store_of_one_job(one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    assert (default(*one) == default(*two)) == (one == two)


@given(st.lists(st.sampled_from(["a", "1", "-"]), min_size=5, max_size=9).map("".join))
def test_no_text_is_the_default_name_of_two_stores(text: str) -> None:
    """All ways to cut one text into a job's name, its id and a store's name."""
    parts = text.split("-")
    cuts = [("-".join(parts[:i]), parts[i], "-".join(parts[i + 1 :])) for i in range(1, len(parts) - 1) if parts[i]]
    legal = [cut for cut in cuts if cut[0] and cut[2] and cut[0][0] != "-" and cut[2][0] != "-"]
    assert len({default(*cut) for cut in legal}) == len(legal)


def test_the_partitions_of_default_streams_are_the_stores() -> None:
    both = config().changelog_partitions(["a-b", "c"], 3)
    assert {str(ssp): store for ssp, store in both.items()} == {
        "local.contract-1-a--b-changelog.3": "a-b",
        "local.contract-1-c-changelog.3": "c",
    }


def test_another_partition_count_is_refused(system: System) -> None:
    admin_of(system).create_resources(1)
    for look in (admin_of(system, 3).validate_resources, lambda: admin_of(system, 3).create_resources(2)):
        with pytest.raises(ConfigError, match=rf"`local\.{STREAM}` has 2 partitions, the job 3 tasks"):
            look()


def test_two_stores_do_not_share_a_changelog(system: System) -> None:
    shared = config(**{"stores.second.changelog": STREAM})
    admin = admin_of(system, settings=shared)
    for look in (partial(admin.create_resources, 1), admin.validate_resources):
        with pytest.raises(ConfigError, match="stores `first` and `second` share the changelog"):
            look()


class CleanedSystem(MemorySystem):
    """Drops records in its own time."""

    compacts_on_request: ClassVar[bool] = False


def test_a_system_that_cannot_promise_is_refused_everywhere(objects: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="may delete records at any time"):
        admin_of(CleanedSystem("local")).create_resources(1)
    with closing(make_harness(objects, tmp_path, MemorySystem("local"))) as harness:
        markers = harness.backup(1).commit(first={b"a": b"1"})
        harness.systems["local"] = CleanedSystem("local")
        with pytest.raises(ConfigError, match="may delete records at any time"):
            harness.restore(markers["first"])
        harness.systems.clear()
        with pytest.raises(ConfigError, match="there is no system `local`"):
            harness.restore(markers["first"])
        with pytest.raises(ConfigError, match="there is no system `local`"):
            harness.factory.backup_manager(harness.context(2)).init(None, {})
