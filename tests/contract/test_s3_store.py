"""The object store contract over a real S3 server, and what is told of one that refuses or is cut off."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.errors import ConfigError, NotFoundError, PenstockError, RetryableError
from penstock.objects import open as open_module
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.testing.object_store_contract import SharedObjectStoreContract
from tests.support.stores.s3 import BUCKET, S3, give_up_soon
from tests.support.streams.line import Fault
from tests.support.tools import contracts

RETRY_S = 0.5
Call = Callable[[ObjectStore], object]
READS: dict[str, Call] = {
    "get": lambda store: store.get("k"),
    "list": lambda store: store.list(""),
    "sizes": lambda store: store.sizes(""),
}
WRITES: dict[str, Call] = {
    "put_if_absent": lambda store: store.put_if_absent("k", b"1"),
    "put_if_match": lambda store: store.put_if_match("k", b"1", '["\\"x\\"", null]'),
    "delete": lambda store: store.delete("k"),
}
CALLS = {**READS, **WRITES}
EACH_CALL = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("get", "put_if_match") else pytest.mark.slow) for name in CALLS]
)


@pytest.fixture
def url(s3: S3) -> str:
    return s3.fresh_url()


@pytest.fixture
def store(url: str) -> ObjectStore:
    return open_store(url)


@pytest.fixture
def impatient(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores opened from now on give up soon."""
    give_up_soon(monkeypatch, RETRY_S)


@pytest.mark.quick(*contracts.OBJECT_STORE)
class TestS3Store(SharedObjectStoreContract):
    """Keeps the contract."""


def test_a_large_object(store: ObjectStore) -> None:
    """As one conditional write, not in parts."""
    data = bytes(range(256)) * 80_000
    assert store.put_if_absent("large", data)
    assert not store.put_if_absent("large", b"")
    found, tag = store.get_with_tag("large")
    assert found == data
    assert store.put_if_match("large", data[1:], tag)
    assert not store.put_if_match("large", data, tag)
    assert store.get("large") == data[1:]


def test_a_listing_that_is_longer_than_a_page_goes_on_after_any_key(s3: S3, store: ObjectStore) -> None:
    keys = [f"d/{number:03d}" for number in range(40)]
    for key in keys:
        store.put_if_absent(key, b"")
    before = s3.line.requests["GET"]
    assert store.list("d") == keys
    assert s3.line.requests["GET"] - before > 4, "the server gives pages"
    for number in (0, 6, 7, 8, 38, 39):
        assert store.list("d", after=keys[number]) == keys[number + 1 :]


# What passes by itself.


def filled(url: str) -> ObjectStore:
    """A store with the object `k`."""
    store = open_store(url)
    store.put_if_absent("k", b"0" * 1000)
    return store


@EACH_CALL
def test_an_answer_of_503_is_asked_again(s3: S3, url: str, name: str) -> None:
    store = filled(url)
    s3.line.plan(Fault.UNAVAILABLE, times=3)
    CALLS[name](store)
    assert s3.line.met[Fault.UNAVAILABLE] == 3


@pytest.mark.parametrize("name", READS)
def test_a_reply_that_is_cut_is_asked_for_again(s3: S3, url: str, name: str) -> None:
    store = filled(url)
    whole = READS[name](store)
    s3.line.plan(Fault.CUT_REPLY, times=2)
    assert READS[name](store) == whole
    assert s3.line.met[Fault.CUT_REPLY] == 2


@pytest.mark.parametrize("name", ["get", "put_if_absent", "put_if_match"])
def test_a_refusal_that_is_cut_is_asked_for_again(s3: S3, url: str, name: str) -> None:
    store = open_store(url)
    if name != "get":
        store.put_if_absent("k", b"0")
    s3.line.plan(Fault.CUT_REPLY, times=2)
    if name == "get":
        with pytest.raises(NotFoundError):
            store.get("k")
    else:
        assert not WRITES[name](store)
    assert s3.line.met[Fault.CUT_REPLY] == 2


def test_a_create_whose_reply_was_lost_finds_its_own_object(s3: S3, store: ObjectStore) -> None:
    s3.line.plan(Fault.LOST_REPLY, method="PUT")
    assert not store.put_if_absent("k", b"1"), "as the contract allows"
    assert s3.line.met[Fault.LOST_REPLY] == 1
    assert store.get("k") == b"1"


def test_a_create_whose_request_was_cut_is_done_once(s3: S3, store: ObjectStore) -> None:
    data = b"1" * 3_000_000
    s3.line.plan(Fault.CUT_REQUEST, method="PUT", times=2)
    assert store.put_if_absent("k", data)
    assert s3.line.met[Fault.CUT_REQUEST] == 2
    assert store.get("k") == data


def test_a_replacement_whose_reply_was_lost_finds_its_own_object(s3: S3, store: ObjectStore) -> None:
    store.put_if_absent("k", b"1")
    _, tag = store.get_with_tag("k")
    s3.line.plan(Fault.LOST_REPLY, method="PUT")
    assert not store.put_if_match("k", b"2", tag), "as the contract allows"
    assert s3.line.met[Fault.LOST_REPLY] == 1
    assert store.get("k") == b"2"


def test_a_delete_whose_reply_was_lost_is_done(s3: S3, url: str) -> None:
    store = filled(url)
    s3.line.plan(Fault.LOST_REPLY, method="DELETE")
    s3.line.plan(Fault.LOST_REPLY, method="POST")
    store.delete("k")
    assert s3.line.met[Fault.LOST_REPLY] == 1
    assert store.list("") == []


@pytest.mark.slow
def test_a_body_may_take_longer_than_a_service_may_be_silent(s3: S3, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_module, "_SILENCE", "1s")
    store = open_store(url)
    s3.line.bytes_per_s = 1_000_000
    data = b"1" * 1_500_000
    assert store.put_if_absent("k", data)
    assert store.get("k") == data


# What has to be corrected, or waited for.


@EACH_CALL
def test_a_store_that_refuses_connections_is_told_by_address(s3: S3, impatient: None, url: str, name: str) -> None:
    store = open_store(url)
    s3.line.cut_off()
    began = time.monotonic()
    with pytest.raises(RetryableError, match=r"Connection refused.*that the service is up") as caught:
        CALLS[name](store)
    assert time.monotonic() - began > RETRY_S * 0.9, "it was tried again"
    assert s3.line.url in str(caught.value)
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)
    s3.line.restore()
    assert store.list("") == [], "the same store goes on"


@pytest.mark.few(1)
@EACH_CALL
def test_a_hanging_service_is_given_up(
    s3: S3, impatient: None, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_module, "_SILENCE", "300ms")
    store = open_store(url)
    s3.line.delay_s = 2.5
    with pytest.raises(RetryableError, match=r"that the service is up"):
        CALLS[name](store)


@EACH_CALL
def test_a_missing_bucket_is_no_empty_store(s3: S3, name: str) -> None:
    with pytest.raises(ConfigError, match=r"bucket does not exist.*job\.root") as caught:
        CALLS[name](open_store("s3://nobody-made-it/jobs"))
    assert "s3://nobody-made-it/jobs" in str(caught.value)


@EACH_CALL
def test_wrong_credentials_are_told(s3: S3, url: str, name: str) -> None:
    store = filled(url)
    with s3.knowing_nobody(), pytest.raises(ConfigError, match=r"InvalidAccessKeyId.*Check the credentials"):
        CALLS[name](store)
    assert store.get("k") == b"0" * 1000


@EACH_CALL
def test_no_credentials_are_told(s3: S3, impatient: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"AWS_ACCESS_KEY_ID.*executors"):
        CALLS[name](open_store(f"s3://{BUCKET}/x"))


def test_half_of_the_credentials(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match=r"Missing SecretAccessKey"):
        open_store(f"s3://{BUCKET}/x").list("")


def test_an_endpoint_without_tls_has_to_be_allowed(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(ConfigError, match="AWS_ALLOW_HTTP=true"):
        open_store(f"s3://{BUCKET}/x").list("")


@pytest.mark.parametrize("value", ["soon", "-1s"])
def test_an_option_of_the_environment_that_makes_no_sense(s3: S3, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_TIMEOUT", value)
    with pytest.raises(ConfigError, match=rf"{value}.*AWS_\*"):
        open_store(f"s3://{BUCKET}/x")


def test_options_of_the_environment_count(s3: S3, impatient: None, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_READ_TIMEOUT", "200ms")
    s3.line.delay_s = 1.5
    with pytest.raises(PenstockError):
        open_store(url).list("")


def test_an_azure_container_without_an_account_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=r"Account must be specified.*AZURE_\*"):
        open_store("az://container/jobs")
