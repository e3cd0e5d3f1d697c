"""Lives of a whole job on simulated time, with everything that goes wrong: `prove.py` lives more of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.testing.simulation.choices import Choices, shrink
from penstock.testing.simulation.simulate import WorkerProcess
from tests.simulation.prove import SUBJECTS, live_in, lived_without, story
from tests.simulation.rules import RULES, WITHOUT
from tests.support.tools.places import ROOT

MOST_SECONDS = 300.0
_QUICK = ("retained", "progress", "trailers")
_LIVED = [name for name, each in RULES.items() if not isinstance(each.missed_by, str) and name not in _QUICK]
_TESTED = [name for name, each in RULES.items() if isinstance(each.missed_by, str)]


def _lived(rule: str) -> tuple[str, int]:
    """The subject and the seed of the life that misses a rule."""
    missed_by = RULES[rule].missed_by
    assert not isinstance(missed_by, str)
    return missed_by


def seeds(subject: str, part: int, lives: int) -> range:
    """Others at each commit, and the same ones where there is no history. The lives of others than
    `sums` are the same each time: `make prove` has more."""
    if subject != "sums":
        return range(10_000 * part, 10_000 * part + lives)
    counted = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    first = 1_000_000 * (int(counted.stdout) if counted.returncode == 0 else 1) + 10_000 * part
    return range(first, first + lives)


class _Workers(dict[str, WorkerProcess]):
    """By subject, its worker process, which starts when it is needed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, subject: str) -> WorkerProcess:
        self[subject] = WorkerProcess(SUBJECTS[subject], folder=self._folder)
        return self[subject]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Workers]:
    found = _Workers(tmp_path_factory.mktemp("workers"))
    yield found
    for each in found.values():
        each.close()


@pytest.mark.parametrize(
    ("subject", "part", "lives"),
    [
        *(("sums", part, 32) for part in range(4)),
        *(("graphs", part, 36) for part in range(4, 8)),
        ("topics", 8, 28),
        *(pytest.param("sums", part, 120, marks=pytest.mark.slow) for part in range(10, 14)),
        *(pytest.param("graphs", part, 120, marks=pytest.mark.slow) for part in range(14, 22)),
        *(pytest.param("topics", part, 80, marks=pytest.mark.slow) for part in range(22, 27)),
    ],
)
def test_lives_end_as_the_oracle_says(subject: str, part: int, lives: int, workers: _Workers) -> None:
    tally = live_in([workers[subject]], iter(seeds(subject, part, lives)), most_broken=1)
    assert not tally.broken, story(tally.broken[0])
    assert tally.lives == lives
    assert tally.faults["killed process"] > lives / 2, "little went wrong"
    if subject == "graphs":
        assert tally.faults["direct run"], "no batch went the direct way"


@pytest.mark.parametrize(
    "subject", [pytest.param(each, marks=() if each == "graphs" else pytest.mark.slow) for each in SUBJECTS]
)
def test_two_runs_of_a_seed_are_equal_event_for_event(subject: str, tmp_path: Path) -> None:
    """Whatever was lived before, and in whichever process."""
    digests = []
    for order in ([1, 2, 3], [3, 1, 2, 3]):
        with closing(WorkerProcess(SUBJECTS[subject], folder=tmp_path)) as worker:
            digests.append({seed: worker.ask(seed)["digest"] for seed in order})
    assert digests[0] == digests[1]
    assert len(set(digests[0].values())) == 3, "each seed has a story of its own"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(_QUICK, id="some"),
        *(pytest.param((each,), id=each, marks=pytest.mark.slow) for each in _LIVED),
    ],
)
def test_a_rule_that_is_taken_out_is_missed(names: tuple[str, ...], workers: _Workers) -> None:
    """By a life of its seed, which holds as long as the rule is there."""
    for name in names:
        subject, seed = _lived(name)
        assert workers[subject].ask(lived_without(name, seed))["broken"], name
        assert not workers[subject].ask(seed)["broken"], name


@pytest.mark.slow
@pytest.mark.parametrize("name", _TESTED)
def test_a_rule_that_another_one_hides_is_missed_by_its_own_test(name: str) -> None:
    """Its test passes, and fails without the rule."""
    test = RULES[name].missed_by
    assert isinstance(test, str)
    for without in ("", name):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", test]
        plugin = ["-p", "tests.simulation.without"] if without else []
        done = subprocess.run([*command, *plugin], cwd=ROOT, env={**os.environ, WITHOUT: without}, capture_output=True)
        assert done.returncode == (1 if without else 0), done.stdout.decode()


def test_a_life_is_lived_again_from_its_decisions_and_a_shorter_one_fails_too(tmp_path: Path) -> None:
    """A job without its rule fails; what is left of its decisions fails in the same way."""
    subject, seed = _lived("retained")
    request = lived_without("retained", seed)
    with closing(WorkerProcess(SUBJECTS[subject], folder=tmp_path)) as worker:
        report = worker.ask(request)
        made = report["choices"]
        again = worker.ask({**request, "choices": made})
        assert (again["digest"], again["broken"]) == (report["digest"], report["broken"])
        assert again["broken"]
        smaller = shrink(made, lambda own: bool(worker.ask({**request, "choices": list(own)})["broken"]), tries=12)
        assert sum(map(bool, smaller)) < sum(map(bool, made))
        assert worker.ask({**request, "choices": smaller})["broken"]


def test_decisions_behind_the_end_of_a_list_are_mild() -> None:
    choices = Choices.of_list([5, 1])
    assert [choices.draw(4), choices.draw(4), choices.draw(4), choices.happens(999)] == [1, 1, 0, False]
    assert choices.made == [1, 1, 0, 0]
