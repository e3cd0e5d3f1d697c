"""Random histories of commits, epochs, rewinds and snapshots: what markers name, and which ways lead to a version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.state.backends.changelog_files.history import StoredVersions, ways
from penstock.state.backends.changelog_files.marker import ChangelogMarker, Version


@dataclass(frozen=True, slots=True)
class Known:
    """A marker, and beside it how its version came about: which epoch wrote each version from 1 on, the snapshots that
    should be named, newest first, and the version after which every delta should be named."""

    marker: ChangelogMarker
    epochs: tuple[int, ...] = ()
    kept: tuple[Version, ...] = ()
    floor: int = 0

    def has(self, version: Version) -> bool:
        """True if the version is in this history."""
        number, epoch = version
        return 0 < number <= len(self.epochs) and self.epochs[number - 1] == epoch

    def after(self, number: int) -> list[Version]:
        """The versions after one, up to this one."""
        return [(later, self.epochs[later - 1]) for later in range(number + 1, len(self.epochs) + 1)]

    def naming(self, snapshots: Iterable[Version], marker: ChangelogMarker) -> Known:
        """With a marker that should name the newest two of these."""
        own = {each for each in snapshots if each in self.kept or (self.has(each) and each[0] > self.floor)}
        kept = tuple(sorted(own, reverse=True)[:2])
        from_empty = self.floor == 0 and len(kept) < 2
        return replace(self, marker=marker, kept=kept, floor=0 if from_empty else kept[-1][0])


class History(RuleBasedStateMachine):
    """`log` has the marker of every commit that is in the log; `stored` all snapshots that anybody made."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1
        self.now = Known(ChangelogMarker())
        self.log = [self.now]
        self.made: set[Version] = set()
        self.stored: set[Version] = set()

    @initialize(base=st.booleans())
    def begin(self, base: bool) -> None:
        if base:
            self.commit_a_snapshot_only()

    @rule(times=st.integers(1, 6))
    def commit(self, times: int) -> None:
        """Deltas. Each marker names the snapshots that its epoch made by then."""
        for _ in range(times):
            marker = self.now.marker.next(self.epoch).with_snapshots(sorted(self.made))
            longer = replace(self.now, epochs=(*self.now.epochs, self.epoch))
            self.now = longer.naming({*self.now.kept, *self.made}, marker)
            self.log.append(self.now)

    @rule()
    def commit_a_snapshot_only(self) -> None:
        """As with `state.changelog.enabled=false`, and as a base."""
        number = len(self.now.epochs) + 1
        marker = ChangelogMarker.of_snapshot(number, self.epoch)
        self.stored.add((number, self.epoch))
        self.now = Known(marker, (*self.now.epochs, self.epoch), ((number, self.epoch),), number)
        self.log.append(self.now)

    @precondition(lambda self: bool(self.now.epochs))
    @rule(back=st.integers(0, 4))
    def snapshot(self, back: int) -> None:
        """A snapshot of an earlier version: it took its time."""
        number = max(1, len(self.now.epochs) - back)
        version = (number, self.now.epochs[number - 1])
        self.made.add(version)
        self.stored.add(version)

    @rule(data=st.data(), discard=st.integers(0, 3))
    def rewind(self, data: st.DataObject, discard: int) -> None:
        """A new epoch continues from a marker in the log, with those snapshots of its history that are whole."""
        del self.log[max(1, len(self.log) - discard) :]
        start = data.draw(st.sampled_from(self.log))
        self.epoch += 1
        self.made = set()
        known = ways(start.marker, StoredVersions(frozenset(), frozenset(self.stored)))
        reachable = {way.snapshot for way in known if way.snapshot is not None}
        lost = data.draw(st.sampled_from(sorted(reachable))) if len(reachable) > 1 else None
        whole = sorted(reachable - {lost}, reverse=True)[:2]
        self.now = start.naming(whole, start.marker.made_of(whole))
        self.log.append(self.now)

    @invariant()
    def the_marker_is_what_the_history_says(self) -> None:
        marker = self.now.marker
        assert marker.version == len(self.now.epochs)
        assert marker.epoch == (self.now.epochs[-1] if self.now.epochs else 0)
        assert marker.snapshots == self.now.kept
        assert list(marker.deltas()) == self.now.after(self.now.floor)
        assert all(self.now.has(version) for version in (*marker.snapshots, *marker.deltas()))

    @invariant()
    def it_is_read_as_it_was_written(self) -> None:
        text = self.now.marker.serialize()
        assert ChangelogMarker.parse(text) == self.now.marker
        assert text.startswith('{"format":1')

    @invariant()
    def naming_again_changes_nothing(self) -> None:
        marker = self.now.marker
        assert marker.with_snapshots(marker.snapshots) == marker == marker.with_snapshots(())
        dead = {(number, epoch + 1) for number, epoch in (*marker.deltas(), *marker.snapshots)}
        dead -= {*marker.deltas(), *marker.snapshots}
        assert marker.with_snapshots(dead) == marker

    @invariant()
    def every_way_leads_to_the_version(self) -> None:
        """The newest first; each begins with a snapshot of its own history and has every delta after it."""
        for known in (self.now, self.log[len(self.log) // 2]):
            found = ways(known.marker, StoredVersions(frozenset(), frozenset(self.stored)))
            begins = [way.snapshot[0] if way.snapshot else 0 for way in found]
            assert begins == sorted(set(begins), reverse=True)
            assert found
            for way in found:
                begin = way.snapshot[0] if way.snapshot else 0
                assert way.snapshot is None or (known.has(way.snapshot) and way.snapshot in self.stored)
                assert list(way.deltas()) == known.after(begin)


TestHistory = History.TestCase


@given(st.data())
def test_a_way_says_which_deltas_are_missing(data: st.DataObject) -> None:
    marker = ChangelogMarker()
    for epoch in sorted(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))):
        marker = marker.next(epoch)
    everything = list(marker.deltas())
    snapshots = data.draw(st.sets(st.sampled_from(everything)))
    there = data.draw(st.sets(st.sampled_from(everything)))
    for way in ways(marker, StoredVersions(frozenset(there), frozenset(snapshots))):
        begin = way.snapshot[0] if way.snapshot else 0
        missing = [delta for delta in everything if delta[0] > begin and delta not in there]
        assert way.missing(StoredVersions(frozenset(there), frozenset())) == (missing[0] if missing else None)
