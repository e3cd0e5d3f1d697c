"""Options of a system `kafka`: taken, refused with a reason, or unknown and near another one."""

from __future__ import annotations

import ctypes
import pickle
import re
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from penstock.errors import (
    ConfigError,
    FencedError,
    NotFoundError,
    PenstockError,
    RetryableError,
    SystemAwayError,
    SystemRefusedError,
)
from penstock.system.kafka.client import open_consumer
from penstock.system.kafka.errors import ClientErrors, explain, is_fenced
from penstock.system.kafka.options import (
    CHOICES,
    CONSUMER,
    INSTEAD,
    PRODUCER,
    RANGES,
    REFUSED,
    SHARED,
    SWITCHES,
    KafkaOptions,
    expected,
    parse_options,
    weaknesses,
)
from penstock.system.kafka.system import KafkaSystem

SERVERS = {"consumer.bootstrap.servers": "127.0.0.1:1"}


def parsed(**options: str) -> KafkaOptions:
    return parse_options("k", {**SERVERS, **{key.replace("__", "."): value for key, value in options.items()}})


def refused(options: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_options("k", {**SERVERS, **options})
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("fetch.max.wait.ms", "Set `fetch.wait.max.ms`"),
        ("ssl.truststore.location", "Set `ssl.ca.location`, a PEM file"),
        ("sasl.jaas.config", "Set `sasl.username` and `sasl.password`"),
        ("zookeeper.connect", "Set `bootstrap.servers`"),
    ],
)
def test_a_name_of_the_java_client_is_refused_with_librdkafkas(name: str, instead: str) -> None:
    text = refused({f"consumer.{name}": "hush"})
    assert text.startswith(f"`systems.k.consumer.{name}` cannot be set: Penstock's client is librdkafka. {instead}")
    assert "hush" not in text


def test_every_name_that_is_given_instead_is_known() -> None:
    shown = {name for text in INSTEAD.values() for name in re.findall(r"`([a-z.]+)`", text)}
    assert shown - {"default.api.timeout.ms", "consumer"} <= (SHARED | CONSUMER | PRODUCER) - REFUSED.keys()
    assert not INSTEAD.keys() & REFUSED.keys()


def test_one_side_is_enough_to_connect() -> None:
    secure = {"security.protocol": "SSL", "ssl.ca.location": "/ca"}
    found = parsed(**{f"consumer.{key}": value for key, value in secure.items()}, producer__linger__ms="3")
    assert found.producer == {"bootstrap.servers": "127.0.0.1:1", **secure, "linger.ms": "3"}
    only = parse_options("k", {"producer.bootstrap.servers": "a:1"})
    assert only.consumer == only.producer == only.admin == {"bootstrap.servers": "a:1"}
    apart = parsed(producer__bootstrap__servers="b:2", consumer__security__protocol="SSL")
    assert apart.producer == {"bootstrap.servers": "b:2"}


def test_one_side_says_how_to_reach_the_brokers_of_both() -> None:
    servers = {"consumer.bootstrap.servers": "a:1,b:1", "producer.bootstrap.servers": "b:1, a:1"}
    secure = {**servers, "consumer.security.protocol": "SSL", "consumer.ssl.ca.location": "/ca"}
    found = parse_options("k", secure)
    assert found.producer["security.protocol"] == "SSL"
    assert found.producer["ssl.ca.location"] == "/ca"
    plain = parse_options(
        "k", {**servers, "consumer.security.protocol": "SSL", "producer.security.protocol": "PLAINTEXT"}
    )
    assert plain.producer["security.protocol"] == "PLAINTEXT"


def test_an_admin_has_what_is_not_the_consumers_alone() -> None:
    found = parsed(consumer__fetch__min__bytes="2", consumer__socket__timeout__ms="90")
    assert found.admin == {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": "90"}


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("consumer.group.id", "joins no consumer group"),
        ("consumer.enable.auto.commit", "no group offset is committed"),
        ("consumer.auto.offset.reset", "samza.offset.default"),
        ("consumer.isolation.level", "only committed messages"),
        ("producer.transactional.id", "fencing"),
        ("producer.acks", "in-sync replicas"),
        ("producer.key.serializer", "serdes"),
        ("producer.fetch.min.bytes", "only consumers have it"),
        ("consumer.linger.ms", "only producers have it"),
        ("consumer.default.api.timeout.ms", "whole number"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_reason(option: str, reason: str) -> None:
    text = refused({option: "some.jks"})
    assert f"`systems.k.{option}`" in text
    assert reason in text


@pytest.mark.parametrize(
    ("option", "near"),
    [
        ("consumer.fetch.min.byte", "consumer.fetch.min.bytes"),
        ("producer.lingr.ms", "producer.linger.ms"),
        ("consumer.fetch.wait.max", "consumer.fetch.wait.max.ms"),
        ("cosumer.fetch.min.bytes", "consumer.fetch.min.bytes"),
        ("consumer.ssl.ca.locatoin", "consumer.ssl.ca.location"),
        ("default.steam.replication.factor", "default.stream.replication.factor"),
    ],
)
def test_an_unknown_option_names_the_nearest(option: str, near: str) -> None:
    assert refused({option: "hush"}) == f"unknown option `systems.k.{option}`: did you mean `systems.k.{near}`?"


def test_no_servers() -> None:
    with pytest.raises(ConfigError, match=r"`systems\.k\.consumer\.bootstrap\.servers` is missing"):
        parse_options("k", {"consumer.fetch.min.bytes": "1"})


SECRETS = [
    "consumer.sasl.password",
    "consumer.ssl.key.password",
    "consumer.ssl.keystore.password",
    "producer.sasl.jaas.config",
    "consumer.ssl.truststore.password",
    "consumer.sasl.passwort",
    "consumer.ssl.key.pem",
]


@pytest.mark.parametrize("option", SECRETS)
def test_secrets_are_in_no_text(option: str) -> None:
    secret = "hush-4711"
    shown = []
    try:
        system = KafkaSystem.configured("k", {**SERVERS, option: secret})
        shown += [repr(system), str(system), repr(system.options), str(system.options)]
        assert pickle.loads(pickle.dumps(system)) == system
        open_consumer(system.options, ClientErrors()).close()
    except PenstockError as error:
        shown += [str(error), repr(error.__cause__), repr(error.__context__)]
    assert shown
    assert not any(secret in text for text in shown)


def test_a_wrong_value_is_a_mistake_in_the_configuration() -> None:
    """The client finds mistakes that depend on other properties."""
    given = parsed(consumer__receive__message__max__bytes="1000")
    with pytest.raises(ConfigError, match=r"`systems\.k\.consumer\.\*`.*receive\.message\.max\.bytes"):
        open_consumer(given, ClientErrors())


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("consumer.fetch.min.bytes", "many", "a whole number from 1 to 100,000,000"),
        ("consumer.fetch.min.bytes", "0", "a whole number from 1 to 100,000,000"),
        ("consumer.fetch.wait.max.ms", "soon", "a whole number from 0 to 300,000"),
        ("producer.message.max.bytes", "5MB", "a whole number from 1,000 to 1,000,000,000"),
        ("producer.linger.ms", "x", "a number from 0 to 900,000"),
        ("producer.compression.type", "rar", "`none`, `gzip`, `snappy`, `lz4` or `zstd`"),
        ("consumer.security.protocol", "TLS", "`plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`"),
        ("consumer.check.crcs", "maybe", "`true` or `false`"),
    ],
)
def test_a_wrong_value_is_named_as_the_configuration_has_it(option: str, value: str, wanted: str) -> None:
    assert refused({option: value}) == f"`systems.k.{option}` = `{value}`: expected {wanted}"


def test_values_are_as_the_client_takes_them() -> None:
    """Each limit and each choice of the table."""
    texts = {"linger.ms": ["2.5"]} | {name: [*map(str, limits)] for name, limits in RANGES.items()}
    texts |= {name: [*values, values[0].upper()] for name, values in CHOICES.items()}
    texts |= {name: ["true", "False", "1"] for name in SWITCHES}
    assert texts.keys() <= SHARED | CONSUMER | PRODUCER
    for name, values in texts.items():
        assert [expected(name, value) for value in values] == [None] * len(values), name


def test_the_names_are_librdkafkas() -> None:
    """Against the list of the library itself."""
    library = next((Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*"), None)
    if library is None:
        pytest.skip("this build of confluent-kafka has no librdkafka beside it")
    show = ctypes.CDLL(str(library)).rd_kafka_conf_properties_show
    libc = ctypes.CDLL(None)
    buffer, size = ctypes.c_char_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(buffer), ctypes.byref(size)))
    show(stream)
    libc.fclose(stream)
    printed = (buffer.value or b"").decode()
    theirs = dict(re.findall(r"^([a-z_][\w.]*) *\| *([*CP]) *\|", printed, re.MULTILINE))
    limits = re.findall(r"^([a-z_][\w.]*) *\| *[*CP] *\| *(-?\d+) \.\. (-?\d+) *\|", printed, re.MULTILINE)
    found = {name: (int(least), int(largest)) for name, least, largest in limits}
    assert {name: found[name] for name in RANGES} == {**RANGES, "fetch.min.bytes": (0, 2**31 - 1)}
    assert len(theirs) > 150
    ours = {**dict.fromkeys(SHARED, "*"), **dict.fromkeys(CONSUMER, "C"), **dict.fromkeys(PRODUCER, "P")}
    assert ours.items() <= theirs.items()
    left_out = {
        key for key in theirs.keys() - ours.keys() if not re.search(r"_cb(_data)?$|opaque|^ssl_|^log\.queue", key)
    }
    assert left_out <= {
        "builtin.features", "default_topic_conf", "enabled_events", "interceptors", "internal.termination.signal",
        "msg_order_cmp", "ssl_engine_callback_data",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, SystemAwayError),
        (KafkaError._TIMED_OUT, SystemAwayError),
        (-137, SystemAwayError),  # _DESTROY_BROKER
        (KafkaError.LEADER_NOT_AVAILABLE, SystemAwayError),
        (KafkaError.NOT_ENOUGH_REPLICAS, SystemAwayError),
        (KafkaError.CONCURRENT_TRANSACTIONS, RetryableError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFoundError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SystemRefusedError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, SystemRefusedError),
        (KafkaError.MSG_SIZE_TOO_LARGE, SystemRefusedError),
        (KafkaError._FATAL, PenstockError),
    ],
)
def test_every_error_has_its_kind(code: int, kind: type[PenstockError]) -> None:
    error = explain(KafkaError(code, "why"), "the thing failed", parsed())
    assert type(error) is kind
    assert error.exit_status == 1, "2 is for a configuration or a call that is wrong"
    assert "the thing failed: why" in str(error)
    assert not isinstance(error, FencedError)


def test_a_call_that_timed_out_says_what_the_client_reported() -> None:
    reported = ClientErrors()
    reported(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    text = explain(KafkaError(KafkaError._TIMED_OUT, "timed out"), "it", parsed(), reported)
    assert isinstance(text, RetryableError)
    assert "connection refused" in str(text)
    reported(KafkaError(KafkaError._SSL, "certificate verify failed"))
    reported(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all brokers down"))
    text = explain(KafkaError(KafkaError._TIMED_OUT, "timed out"), "it", parsed(), reported)
    assert isinstance(text, ConfigError)
    assert "certificate verify failed" in str(text)


def test_a_handshake_that_was_broken_off_is_no_refusal() -> None:
    reported = ClientErrors()
    reported(KafkaError(KafkaError._SSL, "SSL handshake failed: Disconnected"))
    reported.check("it", parsed())
    away = explain(KafkaError(KafkaError._TIMED_OUT, "timed out"), "it", parsed(), reported)
    assert isinstance(away, SystemAwayError)
    assert "Disconnected" in str(away)
    reported(KafkaError(KafkaError._AUTHENTICATION, "invalid credentials"))
    with pytest.raises(ConfigError, match="it: invalid credentials"):
        reported.check("it", parsed())


def test_brokers_that_are_away_for_a_moment_are_no_wrong_replication_factor() -> None:
    why = "Unable to replicate the partition 1 time(s): All brokers are currently fenced."
    away = explain(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, why), "it", parsed())
    assert isinstance(away, RetryableError)
    why = "The target replication factor of 3 cannot be reached because only 1 broker(s) are registered."
    wrong = explain(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, why), "it", parsed())
    assert isinstance(wrong, SystemRefusedError)


def test_who_is_fenced() -> None:
    assert is_fenced(KafkaError(KafkaError._FENCED))
    assert not is_fenced(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, []),
        ({"security.protocol": "SASL_SSL"}, []),
        ({"security.protocol": "SASL_PLAINTEXT"}, ["SASL_PLAINTEXT"]),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}, ["certificate.verification"]),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}, ["identification"]),
    ],
)
def test_what_lets_others_read_or_pretend_is_told(given: dict[str, str], says: list[str]) -> None:
    options = {"bootstrap.servers": "127.0.0.1:9092", **given}
    found = weaknesses(parse_options("kafka", {f"consumer.{key}": value for key, value in options.items()}))
    assert len(found) == len(says)
    assert all(part in text for part, text in zip(says, found, strict=True))
