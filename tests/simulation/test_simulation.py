"""Lives of a whole job on simulated time, with everything that goes wrong: `prove.py` lives more of them."""

from __future__ import annotations

import itertools
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from penstock.testing.simulation.choices import Choices, shrink
from penstock.testing.simulation.pool import WorkerProcess
from tests.simulation.prove import SUBJECTS, live, story
from tests.support.tools.places import ROOT

MOST_SECONDS = 300.0


def seeds(subject: str, part: int, lives: int) -> range:
    """Others at each commit, and the same ones where there is no history. The lives of others than
    `sums` are the same each time: `make prove` has more."""
    if subject != "sums":
        return range(10_000 * part, 10_000 * part + lives)
    counted = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    first = 1_000_000 * (int(counted.stdout) if counted.returncode == 0 else 1) + 10_000 * part
    return range(first, first + lives)


@pytest.mark.parametrize(
    ("subject", "part", "lives"),
    [
        *(("sums", part, 50) for part in range(4)),
        *(("graphs", part, 25) for part in range(4, 8)),
        ("topics", 8, 12),
        *(pytest.param("sums", part, 250, marks=pytest.mark.slow) for part in range(10, 14)),
        *(pytest.param("graphs", part, 120, marks=pytest.mark.slow) for part in range(14, 22)),
        *(pytest.param("topics", part, 80, marks=pytest.mark.slow) for part in range(22, 27)),
    ],
)
def test_lives_end_as_the_oracle_says(subject: str, part: int, lives: int) -> None:
    tally = live(subject, iter(seeds(subject, part, lives)), most_broken=1)
    assert not tally.broken, story(tally.broken[0])
    assert tally.lives == lives
    assert tally.faults["killed process"] > lives / 2, "little went wrong"
    if subject == "graphs":
        assert tally.faults["direct run"], "no batch went the direct way"


@pytest.mark.parametrize("subject", SUBJECTS)
def test_two_runs_of_a_seed_are_equal_event_for_event(subject: str, tmp_path: Path) -> None:
    """Whatever was lived before, and in whichever process."""
    digests = []
    for order in ([1, 2, 3, 4], [4, 2, 3, 1, 4]):
        with closing(WorkerProcess(SUBJECTS[subject], folder=tmp_path)) as worker:
            digests.append({seed: worker.ask(seed)["digest"] for seed in order})
    assert digests[0] == digests[1]
    assert len(set(digests[0].values())) == 4, "each seed has a story of its own"


@pytest.mark.parametrize(
    ("without", "subject", "found"),
    [
        ("retained", "sums", range(4)),
        ("progress", "sums", range(8)),
        ("trailers", "sums", range(24)),
        ("only_committed", "topics", range(4)),
        ("kafka_progress", "topics", range(4)),
        pytest.param("one_token", "sums", range(300, 400), marks=pytest.mark.slow),
    ],
)
def test_a_rule_that_is_taken_out_is_missed(without: str, subject: str, found: range) -> None:
    assert live(subject, iter(found), without=without, most_broken=1).broken


def test_a_life_is_lived_again_from_its_decisions_and_a_shorter_one_fails_too(tmp_path: Path) -> None:
    """A job without its rule fails; what is left of its decisions fails in the same way."""
    environ = {"PENSTOCK_SIMULATE_WITHOUT": "retained"}
    with closing(WorkerProcess(SUBJECTS["sums"], folder=tmp_path, environ=environ)) as worker:
        reports = (worker.ask(seed) for seed in itertools.count())
        report = next(each for each in reports if each["broken"])
        seed, made = report["seed"], report["choices"]
        again = worker.ask({"choices": made, "seed": seed})
        assert (again["digest"], again["broken"]) == (report["digest"], report["broken"])
        smaller = shrink(made, lambda own: bool(worker.ask({"choices": list(own), "seed": seed})["broken"]), tries=12)
        assert sum(map(bool, smaller)) < sum(map(bool, made))
        assert worker.ask({"choices": smaller, "seed": seed})["broken"]


def test_decisions_behind_the_end_of_a_list_are_mild() -> None:
    choices = Choices.of_list([5, 1])
    assert [choices.draw(4), choices.draw(4), choices.draw(4), choices.happens(999)] == [1, 1, 0, False]
    assert choices.made == [1, 1, 0, 0]
