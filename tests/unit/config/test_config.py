"""Sources, merging, messages and the reference of the configuration."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStream
from penstock.config import describe, load_config
from penstock.config import keys as config_keys
from penstock.config.foreign import SAMZA_KEYS, SPARK_KEYS, foreign
from penstock.config.key import Topic
from penstock.config.reference import anchor, markdown, samza_markdown
from penstock.errors import ConfigError
from tests.support.tools.configs import ENV, load, refused
from tests.support.tools.places import ROOT

# ---- defaults


def test_defaults() -> None:
    config = load()
    job, container, task = config.job, config.container, config.task
    assert (job.name, job.id, job.root) == ("flights", "1", "file:///srv/penstock/jobs")
    assert job.logged_store_base_dir == Path("/srv/penstock/state")
    assert (job.batch_max_messages, job.batch_interval_ms, job.lease_ms, job.retry_max) == (200_000, 100, 10_000, 5)
    assert (job.batch_max_bytes, job.batch_target_ms) == (256 << 20, 10_000)
    assert job.intermediate_stream_partitions is None
    assert (container.start_timeout_ms, container.lost_ms) == (60_000, 10_000)
    assert container.restore_timeout_ms == 30 * 60_000
    assert container.attempt_timeout_ms == 600_000
    assert (task.commit_ms, task.commit_timeout_ms, task.shutdown_ms) == (60_000, 30 * 60_000, 30_000)
    assert task.dead_letter_stream is None
    assert task.checkpoint_write_versions == (2,)
    assert config.stream(SystemStream("local", "flights")).offset_default == "oldest"
    assert config.spark == {}, "what spark-submit says counts more than a default"
    assert config.system("local").factory == "local"
    assert config.system("local").options == {"path": "/srv/penstock/streams"}
    assert config.store("aircraft").object_cache_size == 100_000
    assert config.store("aircraft").backup_factories == ("changelog-files",)
    assert config.store("aircraft").restore_factories == ("changelog-files",)


@pytest.mark.parametrize("environ", [{}, {"PENSTOCK_HOME": ""}])
def test_the_home_is_below_the_working_directory_and_absolute(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    monkeypatch.chdir(folder)
    config = load_config(environ=environ, default_job_name="a")
    assert config.home == folder / ".penstock"
    assert config.job.root == (folder / ".penstock" / "jobs").as_uri()
    assert load_config(environ={"PENSTOCK_HOME": "x/../y"}, default_job_name="a").home == folder / "y"


def test_every_default_is_a_value_of_its_kind_and_every_key_is_described() -> None:
    names = [key.name for key in describe()]
    assert len(set(names)) == len(names)
    for key in describe():
        assert key.description.endswith(".")
        assert (key.default is not None) + (key.fallback is not None) + bool(key.unset) == 1
        if key.default is not None:
            value = key.kind.parse(key.default.replace("<home>", "/home/penstock"))
            assert key.kind.parse(key.kind.text(value)) == value


# ---- sources and their order


def test_later_sources_win_and_origins_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("job:\n  name: from-file\n  id: 3\ntask.commit.ms: 1s\njob.lease.ms: 7\n")
    config = load_config(file, {"task": {"commit.ms": 2}, "job.lease.ms": 8}, ["job.lease.ms=9"], ENV)
    assert (config.job.name, config.job.id, config.task.commit_ms, config.job.lease_ms) == ("from-file", "3", 2, 9)
    assert config.origin("job.id") == f"{file}:3"
    assert config.origin("task.commit.ms") == "dict"
    assert config.origin("job.lease.ms") == "-c"
    assert config.origin("job.retry.max") == "default"


def test_yaml_scalars_are_taken_as_written(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text(
        "job: {name: no, id: 010}\n"
        "spark:\n  master: local[2]\n  speculation: false\n  executor.memory: 2g\n"
        "stores:\n  air.craft:\n    object.cache.size: 5\n    backup.factories: [changelog-files]\n"
        "task:\n  # commit.ms: 5\n"
        "container.lost.ms: ~\n"
    )
    config = load_config(file, environ=ENV)
    assert (config.job.name, config.job.id) == ("no", "010")
    assert config.spark == {"spark.master": "local[2]", "spark.speculation": "false", "spark.executor.memory": "2g"}
    assert config.store("air.craft").object_cache_size == 5
    assert config.store_names == ("air.craft",)
    assert config.container.lost_ms == 10_000


def test_none_stands_for_the_default() -> None:
    assert load(**{"job.id": None}).job.id == "1"
    assert load_config(overrides={"job.name": None}, environ=ENV, default_job_name="b").job.name == "b"


def test_values_of_a_dict() -> None:
    config = load(
        **{"job.root": Path("/data"), "spark": {"ui": {"enabled": False}}, "task.checkpoint.write.versions": [1, 2]}
    )
    assert config.job.root == "file:///data"
    assert config.spark["spark.ui.enabled"] == "false"
    assert config.task.checkpoint_write_versions == (1, 2)
    assert "not set" in refused(**{"job.id": {1}})
    assert "list may hold text" in refused(**{"stores.backup.factories": [["a"]]})


def test_properties_file(tmp_path: Path) -> None:
    file = tmp_path / "job.properties"
    file.write_text(
        "# a comment\njob.name = flights\ntask.commit.ms: 5min  \nspark.app.note=a\\\n   b\ntask.shutdown.ms=x"
    )
    with pytest.raises(ConfigError, match=re.escape(f"`task.shutdown.ms` = `x` ({file}:6): expected a duration")):
        load_config(file, environ=ENV)
    config = load_config(file, assignments=["task.shutdown.ms=1"], environ=ENV)
    assert (config.task.commit_ms, config.spark["spark.app.note"]) == (300_000, "ab")


MULTIPLIED = "a0: &a0 {}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 60))
"""A few lines with aliases, which mean 2 ** 60 entries."""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "job: {name: a\n", "a.yaml:2: "),
        ("a.yaml", "- a\n", "a.yaml:1: expected keys and values"),
        ("a.yaml", "job: &x\n  id: *x\n  more: *x\n", "a.yaml:1: an alias contains itself"),
        ("a.yaml", "a: &x {job.name: b}\n<<: *x\n", "merge keys"),
        ("a.yaml", "a: " + "[" * 2000, "a.yaml: it is nested too deeply"),
        ("a.yaml", MULTIPLIED, "at most 100,000 entries are read"),
        ("a.yaml", 'job.id: "\\Uffffffff"', "a.yaml: "),
        ("a.yaml", f"%YAML {'1' * 5000}.1\n---\njob.id: 1\n", "a.yaml: "),
        ("a.yaml", "? [a]\n: b\n", "a key must be text"),
        ("a.yaml", "job.name: [{a: b}]\n", "a list may hold text"),
        ("a.yaml", "job.id: 1\njob:\n  id: 2\n", "`job.id` is set twice in one file: "),
        ("a.yaml", "job.id: \x01\n", "a.yaml"),
        ("a.yaml", "job: 5\n", "unknown key `job` ("),
        ("a.properties", "a=1\nb=\\u12\n", "a.properties:2: `\\u` must be followed"),
        ("a.toml", "", "expected the ending .yaml"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / name, environ=ENV, default_job_name="a")
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.yaml", environ=ENV, default_job_name="a")
    (tmp_path / "latin.properties").write_bytes(b"a=\xe9")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_config(tmp_path / "latin.properties", environ=ENV, default_job_name="a")
    (tmp_path / "empty.yaml").write_text("")
    assert load_config(tmp_path / "empty.yaml", environ=ENV, default_job_name="a").job.name == "a"


def test_assignments() -> None:
    config = load("spark.a==b=", " task.commit.ms = -1 ", "task.dead.letter.stream=local.dead.letters")
    assert config.spark["spark.a"] == "=b="
    assert config.task.commit_ms == -1
    assert config.task.dead_letter_stream == SystemStream("local", "dead.letters")
    assert "`-c job.id...`: expected `-c key=value`" in refused("job.id")


# ---- the job's name


def test_the_job_name() -> None:
    assert load_config(environ=ENV, default_job_name="app").job.name == "app"
    assert load_config(overrides={"job.name": "set"}, environ=ENV, default_job_name="app").job.name == "set"
    with pytest.raises(ConfigError, match=r"`job.name` is missing: set it"):
        load_config(environ=ENV)
    with pytest.raises(ConfigError, match=r"`job.name` = `a/b` \(the application's name\): expected 1 to 128"):
        load_config(environ=ENV, default_job_name="a/b")


def test_name_and_id_cannot_name_another_jobs_folder() -> None:
    """`a` with id `1-2` and `a-1` with id `2` would both be `a-1-2`."""
    assert load("job.name=a-1", "job.id=2").job.id == "2"
    assert "expected 1 to 64 characters" in refused("job.id=1-2")


# ---- names with dots, fallbacks, systems


def test_names_may_contain_dots() -> None:
    config = load(
        "stores.a.rocksdb.b.object.cache.size=7",
        "stores.rocksdb.rocksdb.block.cache.bytes=8",
        "stores.backup.backup.factories=changelog-files",
        "streams.local.a.samza.offset.default.b.samza.offset.default=upcoming",
    )
    assert config.store_names == ("a.rocksdb.b", "backup", "rocksdb")
    assert config.store("a.rocksdb.b").object_cache_size == 7
    assert config.store("rocksdb").rocksdb_block_cache_bytes == 8
    assert config.stream(SystemStream("local", "a.samza.offset.default.b")).offset_default == "upcoming"
    assert config.stream(SystemStream("local", "a")).offset_default == "oldest"


def test_job_wide_values_hold_where_a_store_has_none() -> None:
    config = load("stores.rocksdb.block.cache.bytes=1MB", "stores.a.rocksdb.block.cache.bytes=0")
    assert config.store("a").rocksdb_block_cache_bytes == 0
    assert config.store("b").rocksdb_block_cache_bytes == 2**20
    assert config.store_names == ("a",)


def test_offset_defaults_by_stream_then_system_then_job() -> None:
    settings = ["systems.m.samza.factory=memory", "samza.offset.default=upcoming"]
    stream, other = SystemStream("m", "a.b"), SystemStream("m", "c")
    assert load(*settings).stream(stream).offset_default == "upcoming"
    settings.append("systems.m.default.stream.samza.offset.default=oldest")
    assert load(*settings).stream(stream).offset_default == "oldest"
    assert load(*settings).stream(SystemStream("local", "a.b")).offset_default == "upcoming"
    settings.append("streams.m.a.b.samza.offset.default=upcoming")
    assert load(*settings).stream(stream).offset_default == "upcoming"
    assert load(*settings).stream(other).offset_default == "oldest"


def test_systems() -> None:
    config = load(
        "systems.archive.samza.factory=local", "systems.archive.path=/x", "systems.local.samza.factory=memory"
    )
    assert config.system_names == ("archive", "local")
    assert config.system("archive").options == {"path": "/x"}
    assert config.system("local").factory == "memory"
    with pytest.raises(ConfigError, match="there is no system `kafka`; known: archive, local"):
        config.system("kafka")


def test_options_of_a_client_that_end_as_keys_of_every_system_do() -> None:
    options = {
        "consumer.ssl.truststore.type": "PEM",
        "producer.ssl.keystore.type": "PEM",
        "default.stream.message.timestamp.type": "LogAppendTime",
        "default.stream.of.a.path": "x",
    }
    config = load("systems.k.samza.factory=kafka", *(f"systems.k.{key}={value}" for key, value in options.items()))
    assert config.system("k").options == options
    with pytest.raises(ConfigError, match=r"a system's name .* has no dots"):
        load("systems.a.b.samza.factory=memory")


def test_systems_that_are_not_there_are_refused_together() -> None:
    text = refused("systems.x.path=/x", "task.dead.letter.stream=y.dead", "streams.z.a.samza.offset.default=oldest")
    assert "3 mistakes" in text
    assert (
        "`systems.x.samza.factory` is missing: expected `database` or `delta` or `files` or `iceberg` or `kafka` or "
        "`local` or `memory`, or your own as "
        "`module:Class` (-c)" in text
    )
    assert "`task.dead.letter.stream` (-c): there is no system `y`; known: local, x" in text
    assert "there is no system `z`" in text


# ---- unknown keys


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("task.comit.ms", "task.commit.ms"),
        ("task.commitMs", "task.commit.ms"),
        ("task_commit_ms", "task.commit.ms"),
        ("lease.ms", "job.lease.ms"),
        ("stores.aircraft.objectcache.size", "stores.aircraft.object.cache.size"),
        ("stores.my.air.craft.object.cache.sise", "stores.my.air.craft.object.cache.size"),
        ("store.aircraft.backup.factories", "stores.aircraft.backup.factories"),
        ("stores.aircraft.rocksdb.block_cache.bytes", "stores.aircraft.rocksdb.block.cache.bytes"),
        ("systems.kafka.samza.facotry", "systems.kafka.samza.factory"),
        ("streams.local.flights.samza.ofset.default", "streams.local.flights.samza.offset.default"),
        ("sparks.sql.shuffle.partitions", "spark.sql.shuffle.partitions"),
    ],
)
def test_an_unknown_key_names_the_nearest(wrong: str, right: str) -> None:
    assert config_keys.find(right) is not None
    assert f"unknown key `{wrong}` (-c): did you mean `{right}`?" in refused(f"{wrong}=secret")


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("job.container.count", "Spark gives the containers"),
        ("stores.wikipedia-stats.key.serde", "remove it; the application declares serdes"),
        ("stores.wikipedia-stats.msg.serde", "remove it; the application declares serdes"),
        ("stores.x.container.cache.size.bytes", "use `stores.<name>.rocksdb.block.cache.bytes`"),
        ("stores.x.rocksdb.ttl.ms", "`app.store(name, ttl_ms=...)`"),
        ("task.checkpoint.system", "remove it; checkpoints are in a log"),
        ("job.autosizing.enabled", "use Spark's dynamic allocation"),
        ("task.ignored.exceptions", "use `task.dead.letter.stream`"),
        ("systems.kafka.samza.msg.serde", "remove it; the application declares serdes"),
        ("streams.pages.samza.system", "the id is `system.stream`"),
        ("app.class", "`penstock run module:object` names the application"),
        ("app.name", "use `job.name`"),
        ("app.id", "use `job.id`"),
        ("app.runner.class", "Spark runs the job"),
        ("app.processor.id.generator.class", "Spark runs the job"),
    ],
)
def test_a_key_of_samza_is_answered_and_not_taken_for_another_one(key: str, answer: str) -> None:
    text = refused(f"{key}=secret")
    assert text.startswith(f"`{key}` (-c) is a key of Samza: ")
    assert answer in text
    assert "did you mean" not in text
    assert "secret" not in text


def test_a_stream_of_samzas_kafka_system_is_no_option_of_kafka() -> None:
    text = refused("systems.k.samza.factory=kafka", "systems.k.streams.pages.samza.reset.offset=true")
    assert text == (
        "`systems.k.streams.pages.samza.reset.offset` (-c) is a key of Samza: "
        "use the keys `streams.<name>.<stream>.samza.*`"
    )


def test_no_key_is_answered_that_exists() -> None:
    for row in (*SAMZA_KEYS, *SPARK_KEYS):
        for key in row.keys:
            given = re.sub(r"<\w+>|\*", "zz", key)
            assert row.has(given), key
            assert config_keys.find(given) is None, key


@pytest.mark.parametrize("key", ["stores.x.container.cache.saze.bytes", "stores.a-long-name-of-a-store.shape"])
def test_no_hint_makes_a_store_of_a_part_of_the_key(key: str) -> None:
    assert refused(f"{key}=1") == f"unknown key `{key}` (-c): the command `config keys` lists all keys"


def test_an_option_of_a_system_without_a_factory_asks_for_it() -> None:
    text = refused("systems.kafka.consumer.fetch.wait.max.ms=5")
    assert "if it is an option of the system, set `systems.kafka.samza.factory` too" in text
    assert "samza.factory` too" not in refused("systems.kafka.samza.facotry=kafka")


@pytest.mark.parametrize("key", ["rocksdb.changelogCheckpointing.enabled", "providerClass"])
def test_keys_of_sparks_state_store_are_refused(key: str) -> None:
    assert refused(f"spark.sql.streaming.stateStore.{key}=secret") == (
        f"`spark.sql.streaming.stateStore.{key}` (-c) is a key of Spark's state store: Penstock keeps the state: "
        "use `state.changelog.enabled` and `state.snapshot.interval.commits`"
    )


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("stores.flights.restore.factory", "stores.<name>.restore.factories"),
        ("stores.a.b.restore.factory", "stores.<name>.restore.factories"),
        ("stores.flights.backup.factory", "stores.<name>.backup.factories"),
        ("max.commit.delay", "task.commit.max.delay.ms"),
        ("spark.sql.streaming.minBatchesToRetain", "task.checkpoint.retained"),
        ("spark.sql.streaming.checkpointLocation", "job.root"),
        ("spark.streaming.kafka.maxRatePerPartition", "job.batch.max.messages"),
    ],
)
def test_names_of_proposals_and_of_sparks_queries_have_an_answer(key: str, instead: str) -> None:
    text = refused(f"{key}=blob")
    assert f"`{key}` (-c) is a key of " in text
    assert f"use `{instead}`" in text
    assert config_keys.find(re.sub(r"<\w+>", "zz", instead)) is not None, "it exists"


@pytest.mark.parametrize("key", ["spark.sql.shuffle.partitions", "spark.executor.memory", "stores.restore.factory"])
def test_other_keys_are_found_as_before(key: str) -> None:
    assert foreign(key) is None
    assert config_keys.find(key) is not None


@pytest.mark.parametrize("factory", ["kafka", "files"])
@pytest.mark.parametrize("option", ["root", "root.key", "root.key.previous"])
def test_the_key_of_the_root_is_no_option_of_a_system(factory: str, option: str) -> None:
    text = refused(f"systems.far.samza.factory={factory}", f"systems.far.{option}=env:HOME")
    assert text.startswith(f"unknown key `systems.far.{option}` (-c): ")


@pytest.mark.parametrize("key", ["app.runId", "app.run_id", "app.RUN.ID"])
def test_a_key_of_the_application_that_is_meant_for_penstock(key: str) -> None:
    assert f"unknown key `{key}` (-c): did you mean `app.run.id`?" in refused(f"{key}=x")
    assert load_config(None, {"job.name": "j", "app.unit": "miles"}, (), ENV).origins["app.unit"] == "dict"


def test_no_unknown_key_is_taken_for_one_of_the_application() -> None:
    text = refused("task.drain.timeout.ms=5")
    assert "did you mean `task.callback.drain.timeout.ms`?" in text


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("job.commit.interval.ms", "task.commit.ms"),
        ("job.commit.ms", "task.commit.ms"),
        ("task.comit.ms", "task.commit.ms"),
        ("job.bach.interval.ms", "job.batch.interval.ms"),
        ("task.batch.interval.ms", "job.batch.interval.ms"),
        ("job.checkpoint.retained", "task.checkpoint.retained"),
        ("foo.bar", None),
        ("job.ms", None),
    ],
)
def test_a_key_with_the_telling_word_of_another_one(key: str, meant: str | None) -> None:
    assert config_keys.nearest(key) == meant


@pytest.mark.parametrize("key", ["task.commit.ms", "job.root", "job.retry.max", "task.dead.letter.stream", "job.name"])
def test_an_empty_value_is_the_default_wherever_it_is(key: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{key}:\n")
    properties = tmp_path / "a.properties"
    properties.write_text(f"{key}=\n")
    given: list[tuple[Path | None, tuple[str, ...]]] = [(file, ()), (properties, ()), (None, (f"{key}=",))]
    found = [load_config(path, {}, assignments, ENV, default_job_name="a") for path, assignments in given]
    plain = load_config(None, {}, (), ENV, default_job_name="a")
    assert [(c.job, c.task) for c in found] == [(plain.job, plain.task)] * 3
    given_on = load_config(None, {"job.name": "b"}, ("app.prefix=", "spark.x="), ENV)
    assert given_on.spark["spark.x"] == ""
    assert given_on.origins["app.prefix"] == "-c"
    over = load_config(None, {"job.name": "b", "task.commit.ms": 5}, ("task.commit.ms=",), ENV)
    assert over.task.commit_ms == plain.task.commit_ms, "it replaces what an earlier source says"


def test_no_unknown_key_is_taken_for_one_of_sparks() -> None:
    for key in ("task.nothing.like.it", "commit.everything", "quark.sql.x"):
        assert "spark." not in refused(f"{key}=1")


def test_an_unknown_key_that_is_like_none_and_no_value_is_shown() -> None:
    text = refused("zzz=secret")
    assert text == "unknown key `zzz` (-c): the command `config keys` lists all keys"


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("job.retry.max: many\njob.nmae: x\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, {"job.id": "/"}, ["oops", "task.commit.ms=soon"], ENV)
    text = str(caught.value)
    assert text.startswith("6 mistakes in the configuration:\n  - ")
    for part in (
        f"({file}:1)",
        f"`job.nmae` ({file}:2)",
        "`job.id` = `/` (dict)",
        "-c oops",
        "soon",
        "`job.name` is mis",
    ):
        assert part in text


# ---- the configuration as a value


def test_flat_round_trips_and_the_configuration_is_picklable() -> None:
    config = load(
        "task.commit.ms=10s",
        "job.root=data",
        "stores.a.b.backup.factories= changelog-files",
        "stores.a.b.rocksdb.block.cache.bytes=64MB",
        "task.checkpoint.write.versions=1, 2",
        "task.dead.letter.stream=local.dead",
        "streams.local.x.samza.offset.default=upcoming",
        "spark.x= kept ",
    )
    flat = config.flat()
    assert flat["task.commit.ms"] == "10000"
    assert flat["job.name"] == "flights"
    assert flat["spark.x"] == " kept "
    assert flat["job.root"] == (Path.cwd() / "data").as_uri()
    assert "job.id" not in flat
    assert load_config(overrides=flat, environ=ENV) == config
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert (copy.origin("job.root"), copy.store("a.b"), copy.spark) == ("-c", config.store("a.b"), config.spark)


def test_values_do_not_show_secrets_and_cannot_be_changed() -> None:
    config = load_config(overrides={"spark.hadoop.secret": "hunter2"}, environ=ENV, default_job_name="a")
    assert "hunter2" not in repr(config)
    config.spark["spark.master"] = "changed"
    assert "spark.master" not in config.spark
    with pytest.raises(AttributeError, match=r"`job.name` cannot be changed"):
        config.job.name = "b"  # type: ignore[assignment]


def test_the_reference_is_up_to_date() -> None:
    file = ROOT / "docs" / "configuration.md"
    assert file.read_text("utf-8") == markdown(), "run `python -m penstock.config.reference > docs/configuration.md`"
    assert all(markdown().count(f'<a id="{anchor(key)}"></a>\n\n### `{key.name}`\n') == 1 for key in describe())
    assert len({anchor(key) for key in describe()}) == len(describe())
    assert {key.topic for key in describe()} == set(Topic), "each section of the page has keys"
    samza = ROOT / "docs" / "samza.md"
    assert samza.read_text("utf-8") == samza_markdown(), (
        "run `python -m penstock.config.reference samza > docs/samza.md`"
    )


# ---- what no start could begin with


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (
            {"task.checkpoint.write.versions": "1", "task.checkpoint.read.versions": "2"},
            ("read.versions", "`1`", "`2`"),
        ),
        ({"task.checkpoint.read.versions": "1"}, ("task.checkpoint.write.versions` = `2` (default)",)),
        (
            {"stores.backup.factories": "blob", "stores.restore.factories": "changelog-files"},
            ("`stores.restore.factories`", "backed up to (blob)"),
        ),
        ({"stores.a.restore.factories": "blob"}, ("`stores.a.restore.factories`", "backed up to (changelog-files)")),
        (
            {"stores.restore.factories": "changelog-files", "stores.a.backup.factories": "blob"},
            ("`stores.a.backup.factories`", "Add one of the latter to `stores.a.restore.factories`"),
        ),
    ],
)
def test_what_could_never_be_started_again_is_refused(given: dict[str, object], parts: tuple[str, ...]) -> None:
    message = refused(**given)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "given",
    [
        {"task.checkpoint.write.versions": "1,2", "task.checkpoint.read.versions": "1"},
        {"task.checkpoint.write.versions": "1"},
        {"stores.backup.factories": "blob", "stores.restore.factories": "changelog-files,blob"},
        {"stores.restore.factories": "blob,changelog-files"},
        {"stores.backup.factories": "blob", "stores.a.backup.factories": "changelog-files"},
    ],
)
def test_what_can_be_started_again_is_not(given: dict[str, object]) -> None:
    load(**given)


def test_a_section_is_for_one_job(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        "task.commit.ms: 5s\n"
        "jobs:\n"
        "  flights: {task.commit.ms: 1s, task: {window.ms: 7}, stores.totals.factory: memory}\n"
        "  my.trips: {task.commit.ms: 2s}\n"
        "  broken: {no.such.key: 1, task.commit.ms: never}\n"
    )
    stores = ["totals"]
    flights = load_config(file, default_job_name="flights", stores=stores)
    assert (flights.task.commit_ms, flights.task.window_ms, flights.store("totals").factory) == (1000, 7, "memory")
    assert flights.origin("task.commit.ms") == f"{file}:3"
    assert load_config(file, default_job_name="my.trips", stores=[]).task.commit_ms == 2000
    assert load_config(file, {"job.name": "my.trips"}, default_job_name="flights", stores=[]).task.commit_ms == 2000
    assert load_config(file, default_job_name="others", stores=[]).task.commit_ms == 5000
    later = load_config(file, assignments=["task.commit.ms=9s"], default_job_name="flights", stores=stores)
    assert later.task.commit_ms == 9000, "a later source counts more"
    both = ["jobs.flights.task.commit.ms=8s", "task.commit.ms=9s"]
    assert load_config(file, assignments=both, default_job_name="flights", stores=stores).task.commit_ms == 8000
    with pytest.raises(ConfigError, match="2 mistakes"):
        load_config(file, default_job_name="broken", stores=[])
