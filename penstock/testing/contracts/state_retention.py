"""The contract of every state backend's garbage collection; part of the backends' contract."""

from __future__ import annotations

import random

import pytest

from penstock.errors import PenstockError, RetryableError
from penstock.objects.store import ObjectStore
from penstock.state.engines.engine import Changes
from penstock.testing.faulty_store import FaultyStore
from penstock.testing.state_backend_harness import STORES, BackendHarness, Content

_Version = tuple[dict[str, str], dict[str, Content]]


class StateRetentionContract:
    """Tests of `StateBackendAdmin.collect`, over the fixtures of `StateBackendContract`."""

    @pytest.mark.parametrize("seed", range(4))
    def test_what_is_retained_still_restores(self, harness: BackendHarness, seed: int) -> None:
        """Random histories, random checkpoints leave; the epochs rewind now and then."""
        rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        log: list[_Version] = []
        for epoch in range(1, 4):
            self._run_epoch(harness, rng, epoch, log)
            gone = sorted(rng.sample(range(len(log) - 1), rng.randrange(len(log))), reverse=True)
            left = [log.pop(number)[0] for number in gone]
            retained = [markers for markers, _ in log]
            sweep = rng.random() < 0.5
            planned = harness.collect(retained, left, epoch=epoch, sweep=sweep, dry_run=True)
            assert harness.collect(retained, left, epoch=epoch, sweep=sweep) == planned
            for markers, contents in log:
                for store in STORES:
                    assert harness.restore(markers[store], store) == contents[store], f"seed {seed}, epoch {epoch}"

    def test_a_dry_run_deletes_nothing(self, harness: BackendHarness, objects: ObjectStore) -> None:
        task = harness.backup(1)
        markers = [task.commit(first={b"k": b"%d" % number}) for number in range(4)]
        task.finish()
        before = objects.list("")
        planned = harness.collect(markers[3:], markers[:3], epoch=1, sweep=True, dry_run=True)
        state = [key for key in before if not key.startswith(f"{harness.paths.root}/metadata/")]
        assert set(planned.names) <= set(before) or not state
        assert objects.list("") == before
        for number, own in enumerate(markers):
            assert harness.restore(own["first"]) == {b"k": b"%d" % number}

    def test_collecting_again_finds_nothing(self, harness: BackendHarness) -> None:
        task = harness.backup(1)
        markers = [task.commit(first={b"k": b"%d" % number}) for number in range(4)]
        harness.collect(markers[3:], markers[:3], epoch=1)
        harness.collect(markers[3:], markers[:3], epoch=1)
        assert harness.collect(markers[3:], [], epoch=1, sweep=True).names == ()
        assert harness.restore(markers[3]["first"]) == {b"k": b"3"}

    def test_a_sweep_names_only_what_is_there(self, harness: BackendHarness) -> None:
        """Checkpoints that a start went back behind stay in the log for a while, and a collection may be repeated."""
        task = harness.backup(1)
        first, *left = (task.commit(first={b"k": b"%d" % number}) for number in range(3))
        task.finish()
        last = harness.backup(2, first).commit(first={b"k": b"other"})
        harness.collect([last], left, epoch=2, sweep=True)
        assert harness.collect([last], left, epoch=2, sweep=True, dry_run=True).names == ()
        assert harness.restore(last["first"]) == {b"k": b"other"}

    def test_a_commit_goes_on_after_a_collection(self, harness: BackendHarness) -> None:
        """Everything that the next commit needs from the last one is there, even where earlier content comes back."""
        task = harness.backup(1)
        last = task.commit(first={b"k": b"0"})
        for number in range(1, 6):
            markers = task.commit(first={b"k": b"%d" % (number % 2)})
            harness.collect([markers], [last], epoch=1)
            assert harness.restore(markers["first"]) == task.content()
            last = markers

    def test_a_sweep_removes_what_dead_epochs_left_behind(self, harness: BackendHarness, objects: ObjectStore) -> None:
        alive = harness.backup(1)
        first = alive.commit(first={b"a": b"1"})
        alive.finish()
        logged = set(objects.list(""))
        dead = harness.backup(2, first)
        dead.commit_changes({"first": {b"dead": b"1"}}, clean_up=False)
        dead.commit_changes({"first": {b"dead": b"2"}}, clean_up=False)
        dead.finish()
        leftovers = set(objects.list("")) - logged
        live = harness.backup(3, first)
        in_flight = live.commit_changes({"first": {b"live": b"1"}}, clean_up=False)
        live.finish()
        own = set(objects.list("")) - logged - leftovers
        collected = harness.collect([first], [], epoch=3, sweep=True)
        assert leftovers <= set(collected.names)
        assert not leftovers & set(objects.list(""))
        assert own <= set(objects.list(""))
        assert harness.restore(first["first"]) == {b"a": b"1"}
        assert harness.restore(in_flight["first"]) == {b"a": b"1", b"live": b"1"}

    def test_without_a_sweep_only_what_left_is_deleted(self, harness: BackendHarness, objects: ObjectStore) -> None:
        alive = harness.backup(1)
        first = alive.commit(first={b"a": b"1"})
        dead = harness.backup(2, first)
        dead.commit_changes({"first": {b"dead": b"1"}}, clean_up=False)
        for task in (alive, dead):
            task.finish()
        before = objects.list("")
        assert harness.collect([first], [], epoch=3).names == ()
        assert objects.list("") == before

    @pytest.mark.parametrize("seed", range(3))
    def test_an_interrupted_collection_is_finished_by_the_next(
        self, harness: BackendHarness, objects: ObjectStore, seed: int
    ) -> None:
        task = harness.backup(1)
        markers = [task.commit(first={b"k": b"%d" % number}, second={b"%d" % number: b"x"}) for number in range(6)]
        planned = harness.collect(markers[4:], markers[:4], epoch=1, dry_run=True)
        faulty = FaultyStore(objects, seed, rate=0.05)
        harness.objects = faulty
        for _ in range(1000):
            try:
                harness.collect(markers[4:], markers[:4], epoch=1)
                break
            except RetryableError:
                continue
        else:
            raise PenstockError("a thousand collections failed")
        faulty.rate = 0
        assert not set(planned.names) & set(objects.list(""))
        for number in (4, 5):
            assert harness.restore(markers[number]["first"]) == {b"k": b"%d" % number}
            assert harness.restore(markers[number]["second"], "second").keys() == {b"%d" % n for n in range(number + 1)}

    def _run_epoch(self, harness: BackendHarness, rng: random.Random, epoch: int, log: list[_Version]) -> None:
        if log and rng.random() < 0.5:
            # A rewind, as by `--from`: the checkpoints after it stay in the log.
            log.append(rng.choice(log))
        task = harness.backup(epoch, log[-1][0] if log else None)
        for _ in range(4):
            changes: dict[str, Changes] = {}
            for store in STORES:
                keys = [b"%d" % rng.randrange(6) for _ in range(rng.randrange(4))]
                changes[store] = {key: rng.choice((None, b"1", b"2")) for key in keys}
            markers = task.commit_changes(changes)
            log.append((markers, {store: task.content(store) for store in STORES}))
        task.commit_changes({"first": {b"not in the log": b"1"}}, clean_up=False)
        task.close()
