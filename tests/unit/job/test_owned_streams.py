"""The streams of a job, while a stranger changes what the system says of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.job.identity import NAMESPACE, OwnedStreams
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.system.base import SystemAdmin
from penstock.system.memory import MemorySystem

STREAM = SystemStream("kafka", "log")


class KilledError(BaseException): ...


class Killing:
    """Ends the process before the call of this number, or none."""

    def __init__(self, inner: object, at: list[int]) -> None:
        self._inner, self._at = inner, at

    def __getattr__(self, name: str) -> object:
        call = getattr(self._inner, name)

        def killed(*args: object) -> object:
            self._at[0] -= 1
            if self._at[0] < 0:
                raise KilledError
            return call(*args)

        return killed


@contextmanager
def home() -> Iterator[tuple[MemorySystem, ObjectStore]]:
    system = MemorySystem("kafka")
    system.admin().create_stream("log", 1)
    with closing(open_store(f"memory://{uuid.uuid4().hex}")) as objects:
        yield system, objects


def owned(objects: ObjectStore, job: str) -> OwnedStreams:
    return OwnedStreams(objects, JobPaths(job, "1"))


def begin(system: MemorySystem, objects: ObjectStore, job: str, calls: int = 1000) -> str:
    """A start that dies after so many calls into the system or the root."""
    left = [calls]
    admin: SystemAdmin = Killing(system.admin(), left)  # type: ignore[assignment]
    root: ObjectStore = Killing(objects, left)  # type: ignore[assignment]
    return OwnedStreams(root, JobPaths(job, "1")).own(STREAM, admin, job, lambda: None)


def forge(system: MemorySystem, owner: str | None) -> None:
    system.owners.pop("log", None)
    if owner is not None:
        system.owners["log"] = owner


events = st.one_of(
    st.tuples(st.just("start"), st.sampled_from(["a", "b"]), st.integers(0, 6)),
    st.tuples(st.just("start"), st.sampled_from(["a", "b"]), st.just(1000)),
    st.tuples(st.just("forge"), st.sampled_from(["stranger", None, "a", "b"]), st.just(0)),
    st.tuples(st.just("create again"), st.none(), st.just(0)),
)


@pytest.mark.attack
@given(st.lists(events, max_size=15))
def test_who_has_got_a_stream_keeps_it_and_who_dies_before_has_not(
    given: list[tuple[str, str | None, int]],
) -> None:
    with home() as (system, objects):
        keeps: set[str] = set()
        for what, who, calls in given:
            if what == "forge":
                forge(system, who)
            elif what == "create again":
                system.admin().delete_stream("log")
                system.admin().create_stream("log", 1)
                keeps.clear()
            elif who is not None:
                before = system.owners.get("log")
                try:
                    got = begin(system, objects, who, calls)
                except KilledError:
                    continue
                assert got == (who if who in keeps or before in (None, who) else before)
                if got == who:
                    keeps.add(who)
                assert owned(objects, who).owner(STREAM, system.admin()) == got


@pytest.mark.attack
@pytest.mark.parametrize("calls", range(7))
def test_two_jobs_compete_and_one_of_them_dies_anywhere(calls: int) -> None:
    """One has the stream, and the other never had it: whoever wrote before its death goes on."""
    with home() as (system, objects):
        with suppress(KilledError):
            begin(system, objects, "a", calls)
        claimed = system.owners.get("log")
        assert begin(system, objects, "b") == (claimed or "b")
        assert begin(system, objects, "a") == (claimed or "b")


@pytest.mark.attack
def test_a_taken_stream_is_not_looked_at_again_whatever_the_system_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse() -> None:
        raise IncompatibleError("it has messages")

    with home() as (system, objects):
        streams, admin = owned(objects, "a"), system.admin()
        with pytest.raises(IncompatibleError):
            streams.own(STREAM, admin, "a", refuse)
        assert admin.owner("log") is None
        begin(system, objects, "a")
        assert streams.own(STREAM, admin, "a", refuse) == "a"
        forge(system, None)
        assert streams.own(STREAM, admin, "a", refuse) == "a"
        assert admin.owner("log") == "a", "others see the claim again"
        assert caplog.text == ""
        forge(system, "stranger")
        assert streams.own(STREAM, admin, "a", refuse) == "a"
        assert "belongs to another owner: stranger" in caplog.text
        assert owned(objects, "b").own(STREAM, admin, "b", refuse) == "stranger"


@pytest.mark.attack
def test_a_copied_folder_and_another_store_have_what_the_record_says() -> None:
    with home() as (system, objects):
        begin(system, objects, "a")
        forge(system, None)
        assert owned(objects, "a").own(STREAM, system.admin(), "the copy of a", lambda: None) == "a"
        assert system.admin().owner("log") is None


@pytest.mark.attack
@pytest.mark.parametrize("has_messages", [True, False])
def test_an_output_with_messages_is_taken_from_no_writer(has_messages: bool, caplog: pytest.LogCaptureFixture) -> None:
    with home() as (system, objects):
        streams, admin = owned(objects, "a"), system.admin()
        if has_messages:
            system.writer(None).append(SystemStreamPartition("kafka", "log", 0), [(0, None, b"m")])
        for _ in range(2):
            assert streams.keeps_from(STREAM, admin) is None
        forge(system, "b")
        assert streams.keeps_from(STREAM, admin) == (None if has_messages else "b")
        assert ("somebody has forged" in caplog.text) == has_messages
        assert owned(objects, "c").keeps_from(STREAM, admin) == "b"
        system.admin().delete_stream("log")
        system.admin().create_stream("log", 1)
        forge(system, "b")
        assert streams.keeps_from(STREAM, admin) == "b"


def test_a_system_that_keeps_no_owners_leaves_it_to_the_folder() -> None:
    looked: list[None] = []
    with home() as (system, objects):
        for _ in range(2):
            streams = owned(objects, "a")
            look: Callable[[], None] = lambda: looked.append(None)  # noqa: E731
            assert streams.own(STREAM, system.admin(), "a", look, keeps_owners=False) == "a"
    assert looked == [None]


@pytest.mark.attack
@pytest.mark.parametrize("damage", [b"", b"{}", b"words", b'{"format":1}'])
def test_a_damaged_record_is_an_error(damage: bytes) -> None:
    with home() as (system, objects):
        begin(system, objects, "a")
        (key,) = objects.list(JobPaths("a", "1").metadata_folder(NAMESPACE))
        objects.delete(key)
        objects.put_if_absent(key, damage)
        with pytest.raises(CorruptError, match="is damaged"):
            begin(system, objects, "a")


def test_a_stream_that_is_not_there() -> None:
    with home() as (system, objects), pytest.raises(NotFoundError):
        owned(objects, "a").owner(SystemStream("kafka", "none"), system.admin())
