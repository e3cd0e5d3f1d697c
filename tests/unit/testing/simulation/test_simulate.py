"""`penstock.testing.simulate` and `penstock simulate`, on jobs with and without mistakes."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing import SimulationFailedError, SimulationInputs, SimulationReport, simulate
from penstock.testing.simulation.preparation import load_for_simulation, prepare
from tests.support.jobs.home import wait_until
from tests.support.processes.python import PENSTOCK, variables
from tests.support.tools.cli import call, own_home
from tests.support.tools.pages import blocks
from tests.support.tools.places import ROOT

TRIPS = [{"tail": f"N{n % 3}", "n": n} for n in range(24)]
PAGE = (ROOT / "docs" / "simulation.md").read_text("utf-8")


class Count(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.flights: ps.KeyValueStore[str, int] = context.store("flights")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        count = self.flights.get(envelope.key, 0) + 1
        self.flights[envelope.key] = count
        collector.emit(key=envelope.key, value=count)


def counting(system: str = "local") -> ps.StreamApplication:
    app = ps.StreamApplication("flights")
    app.store("flights", value=ps.Integer())
    trips = app.input(f"{system}.trips").partition_by(lambda trip: trip["tail"], id="by-tail")
    trips.process(Count, stores=["flights"], id="count").send_to(app.output(f"{system}.counts", value=ps.Integer()))
    return app


def mapping(function: Callable[[Any], object], other: Callable[[Any], object] | None = None) -> ps.StreamApplication:
    app = ps.StreamApplication("mapping")
    trips = app.input("local.trips")
    trips.map(function, id="map").send_to(app.output("local.out"))
    if other is not None:
        trips.map(other, id="other").send_to(app.output("local.others"))
    return app


def run(app: ps.StreamApplication, **options: Any) -> SimulationReport:
    """One life of the job with faults, in one process."""
    return simulate(app, {"local.trips": TRIPS}, **{"seeds": 1, "processes": 1, **options})


def all_counted(inputs: Any, outputs: Any, stores: Any) -> str | None:
    assert {message.value["tail"] for message in inputs["kafka.trips"]} == set(stores["flights"])
    assert outputs["kafka.counts"]
    counted = sum(stores["flights"].values())
    return None if counted == len(inputs["kafka.trips"]) else f"{counted} flights are counted"


# ---- what holds


@pytest.mark.slow
def test_a_job_without_mistakes_holds_with_streams_and_backups_of_any_system() -> None:
    report = simulate(
        counting("kafka"),
        {"kafka.trips": TRIPS},
        seeds=3,
        invariants=[all_counted],
        compare=True,
        processes=1,
        config={
            "systems.kafka.samza.factory": "kafka",
            "systems.kafka.consumer.bootstrap.servers": "nobody:1",
            "streams.kafka.counts.output.guarantee": "exactly-once",
            "stores.flights.backup.factories": "changelog-stream",
        },
    )
    assert (report.holds, report.lives) == (True, 3)
    assert sum(report.faults.values()) > 0
    assert report.notes == [
        "simulated streams take the place of those of `kafka` (kafka)",
        "stores are backed up in memory, by `changelog-files` or `blob`, in place of changelog-stream",
    ]


@pytest.mark.slow
def test_messages_that_come_twice_are_counted_twice() -> None:
    """And a job that drops them holds."""
    with pytest.raises(SimulationFailedError, match="store `flights`") as failed:
        run(counting(), seeds=10, doubled=["local.trips"])
    shown = str(failed.value)
    assert re.search(
        r"what came late or twice:\n  message \d+ of input `local.trips` partition \d comes again, ", shown
    )
    app = ps.StreamApplication("once")
    trips = app.input("local.trips").partition_by(lambda trip: str(trip["n"]), id="by-number")
    trips.deduplicate("1h", id="once").map(lambda trip: trip["n"], id="n").send_to(app.output("local.out"))
    assert run(app, seeds=10, doubled=["local.trips"], late=["local.trips"]).holds


# ---- what does not


@pytest.mark.slow
def test_the_mistake_of_the_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home(tmp_path, monkeypatch)
    job, test = blocks(PAGE)[:2]
    ((messages,), (command,), (shown,)) = blocks(PAGE, "json"), blocks(PAGE, "sh"), blocks(PAGE, "")
    Path("job.py").write_text(job, "utf-8")
    Path("trips.jsonl").write_text(messages, "utf-8")
    exec(compile(job + test, "simulation.md", "exec"), {"__name__": "simulation_page"})
    out, _ = call(*command.split()[1:], status=1)
    title, first, *_ = out.splitlines()
    found, expected = re.fullmatch(r"seed (\d+) is broken", title), shown.splitlines()
    assert found is not None
    assert first.startswith("  output `local.flights`: ")
    assert out.endswith(f"`--seed {found[1]}` lives this life again\n")
    lived = re.fullmatch(r"seed (\d+) is broken", expected[0])
    assert lived is not None
    again, _ = call(*command.replace("--seeds 20", f"--seed {lived[1]}").split()[1:], status=1)
    assert again.splitlines()[:3] == expected[:3], "the page shows what the command prints"
    if lived[1] == found[1]:
        assert again.splitlines()[:2] == [title, first]


@pytest.mark.slow
def test_the_page_runs_as_written() -> None:
    exec(compile("".join(blocks(PAGE)), "simulation.md", "exec"), {"__name__": "simulation_page"})


def seventh(trip: dict[str, Any]) -> int:
    if trip["n"] == 7:
        raise ValueError("no seven")
    return 1


def endless(trip: dict[str, Any]) -> int:
    while trip["n"] == 7:
        signal.pause()  # the limit is a signal; until it comes, others have the core
    return 1


def test_an_operator_that_raises_is_shown_with_its_message() -> None:
    with pytest.raises(SimulationFailedError) as failed:
        run(mapping(seventh))
    failure = failed.value.report.failure
    assert failure is not None
    assert failure.broken == [
        "ValueError: no seven, in operator `map`, at stream `local.trips` partition 1 offset 3 key None"
    ]
    assert "in seventh" in failure.traceback
    assert str(failed.value).startswith("the job fails without any fault")


def test_an_invariant_is_told_what_to_return_and_what_there_is() -> None:
    """One that only looks holds."""

    def returns(inputs: Any, outputs: Any, stores: Any) -> bool:
        return True

    def looks(inputs: Any, outputs: Any, stores: Any) -> None:
        assert "sums" not in stores
        assert stores.get("sums") is None
        with pytest.raises(KeyError):
            stores["sums"]

    def asks_inputs(inputs: Any, outputs: Any, stores: Any) -> None:
        inputs["trips"]

    def asks_outputs(inputs: Any, outputs: Any, stores: Any) -> None:
        outputs["n"]

    def asks_stores(inputs: Any, outputs: Any, stores: Any) -> None:
        stores["sums"]

    with pytest.raises(SimulationFailedError) as failed:
        run(counting(), invariants=[returns, looks, asks_inputs, asks_outputs, asks_stores])
    first, *lines = str(failed.value).splitlines()
    assert first == "an invariant does not hold, without any fault"
    lines = [line for line in lines if line.startswith("  invariant")]
    assert [re.sub(f" .{re.escape(__file__)}:[0-9]+.$", "", line) for line in lines] == [
        "  invariant `returns` returned True: use `assert`, or return a text if it does not hold",
        "  invariant `asks_inputs`: UnknownNameError: there is no input `trips`; the application has `local.trips`",
        "  invariant `asks_outputs`: UnknownNameError: there is no output `n`; the application has `local.counts`",
        "  invariant `asks_stores`: UnknownNameError: there is no store `sums`; the application has `flights`",
    ]


@pytest.mark.slow
def test_an_operator_that_does_not_end_is_named() -> None:
    with pytest.raises(SimulationFailedError, match=r"has not ended within 8 s: it is in `endless`, line \d+ of .*py"):
        run(mapping(endless), limit_s=8)


@pytest.mark.slow
def test_a_process_that_ends_is_a_failure_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(SimulationFailedError, match="ended with status 3"):
        run(mapping(lambda trip: os._exit(3)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_too_much_memory_is_a_failure() -> None:
    with pytest.raises(SimulationFailedError, match="MemoryError"):
        run(mapping(lambda trip: len([0] * 2_000_000_000)))


# ---- what differs from life to life


def varied(trip: dict[str, Any]) -> list[object]:
    return [time.time() > 0, len(str(uuid.uuid4())), random.random() < 2]


def reaching(trip: dict[str, Any]) -> int:
    """Files, another program, and the pipes of the process."""
    with open(os.devnull, "a") as file:
        file.write("x")
    Path(os.devnull).read_text("utf-8")
    os.remove(tempfile.mkstemp()[1])
    print("no report", subprocess.run(["true"], check=True), file=sys.stdout)
    os.write(1, b"{}\n")
    return len(sys.stdin.read())


def calling(trip: dict[str, Any]) -> list[str]:
    """The errors of calls to an address, by each way there is, to a name, and to a socket that is a file."""
    address, found = ("127.0.0.1", 1), []
    for reach in (
        lambda own: own.connect(address),
        lambda own: own.connect_ex(address),
        lambda own: own.sendto(b"", address),
        lambda own: socket.create_connection(address),
        lambda own: socket.create_connection(("example.invalid", 1)),
        lambda own: socket.socket(socket.AF_UNIX).connect("/nobody"),
    ):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            try:
                reach(own)
            except OSError as error:
                found.append("no network" if "does not reach the network" in str(error) else type(error).__name__)
    return found


def connecting(trip: dict[str, Any]) -> None:
    socket.create_connection(("127.0.0.1", 1))


def test_calls_that_are_not_the_same_in_each_life_are_notes_and_no_life_reaches_the_network() -> None:
    def refused(inputs: Any, outputs: Any, stores: Any) -> None:
        refusals = [*["no network"] * 5, "FileNotFoundError"]
        assert outputs["local.others"]
        assert all(message.value == refusals for message in outputs["local.others"])

    *notes, last = run(mapping(varied, calling), invariants=[refused]).notes
    found = [note.split(": ")[0] for note in notes if "in operator `map`" in note]
    line = varied.__code__.co_firstlineno + 1
    assert [each.split(f"{__file__}:{line} ")[1] for each in found] == [
        f"calls {name} in operator `map`, at about offset 0 of stream `local.trips` partition {partition}"
        for name, partition in (("time.time", 0), ("uuid.uuid4", 0), ("random.random", 0))
    ]
    names = [re.sub(r".* calls (\S+) in operator `other`.*", r"\1", note) for note in notes]
    assert names.count("socket.create_connection") == 2
    assert len(names) - len(found) >= 5
    assert last.startswith("invariants alone were checked: `--compare`")


def test_calls_of_files_and_programs_are_notes_and_prints_do_no_harm() -> None:
    def prints(inputs: Any, outputs: Any, stores: Any) -> None:
        print("not a report either")
        assert {message.value for message in outputs["local.out"]} == {0}

    report = run(mapping(reaching), invariants=[prints], compare=True)
    assert report.holds
    notes = [note.split(f"{__file__}:")[-1].split(" in operator")[0] for note in report.notes]
    first = reaching.__code__.co_firstlineno
    assert {f"{first + 2} calls open", f"{first + 4} calls pathlib.Path.read_text", f"{first + 5} calls os.remove"} <= {
        *notes
    }
    assert f"{first + 6} calls subprocess.run" in notes


@pytest.mark.slow
def test_a_life_reaches_the_network_if_it_may() -> None:
    with pytest.raises(SimulationFailedError, match="ConnectionRefusedError"):
        run(mapping(connecting), network=True)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        pytest.param(
            lambda trip: random.random(),
            r"depend on random numbers or on the clock .* message 0 of output `local.out`",
            marks=pytest.mark.slow,  # its notes, and comparisons of lives, are those of the tests around it
        ),
        (lambda trip: list({"a", "b", "c", "d", "e"}), "depend on the order of a set"),
    ],
    ids=["random", "set"],
)
def test_results_that_differ_without_faults_are_errors(function: Callable[[Any], object], error: str) -> None:
    with pytest.raises(SimulationFailedError, match=error) as failed:
        run(mapping(function))
    assert failed.value.report.failure is None


# ---- bad input


@pytest.mark.parametrize(
    ("inputs", "options", "error"),
    [
        ({}, {}, "the inputs have no messages: give some of `local.trips`"),
        ({"local.other": [1]}, {}, "`local.other` is not an input of application `flights`"),
        ({"local.trips": TRIPS}, {"late": ["local.other"]}, "whose inputs are `local.trips`: name one of them"),
        ({"local.trips": TRIPS}, {"seeds": 0}, "needs at least one seed"),
        ({"local.trips": TRIPS}, {"seeds": [3, 0]}, "a whole number of 1 or more"),
        (
            {"local.trips": TRIPS},
            {"invariants": [lambda inputs: None]},
            "cannot be called as `<lambda>",
        ),
        ({"local.trips": TRIPS}, {"partitions": 0}, "partitions must be at least 1"),
        ({"local.trips": TRIPS}, {"config": {"task.commit.ms": "soon"}}, r"task\.commit\.ms"),
    ],
)
def test_wrong_arguments_are_refused(inputs: dict[str, list[Any]], options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        simulate(counting(), inputs, **options)


def test_an_input_has_the_partitions_that_the_simulation_has() -> None:
    inputs = SimulationInputs(counting().graph(), 2)
    with pytest.raises(ConfigError, match="has no partition 2"):
        inputs.input("local.trips", [1], partition=2)
    inputs.input("local.trips", [1, 2, 3]).input("local.trips", [4], partition=1, headers={"a": "b"})
    assert [partition for _, partition, _ in inputs.feed] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "give `--inputs local.trips=FILE`"),
        (["--inputs", "other=t.jsonl"], "`local.other` is not an input"),
        (["--inputs", "none.jsonl"], "there is no file none.jsonl"),
        (["--inputs", "t.jsonl", "--inputs", "trips=t.jsonl"], "is a second file for `local.trips`"),
        (["--inputs", "t.jsonl", "--key", "nothing"], "has no field 'nothing'"),
        (["--inputs", "t.jsonl", "--key", "trip=tail"], "`--key trip=tail` is for an input without a file"),
        (["--inputs", "t.jsonl", "--invariants", "job.py:nothing"], "there is no function `nothing`"),
        (["--inputs", "t.jsonl", "--invariants", "none.py:nothing"], "none.py"),
        (["--inputs", "t.jsonl", "-c", "task.commit.ms=soon"], "task.commit.ms"),
        (["--inputs", "t.jsonl", "--late", "other"], "`local.other` is not an input"),
        (["--inputs", "t.jsonl", "--seed", "1", "--seeds", "2"], "give one of the two"),
    ],
)
def test_a_wrong_call_is_refused(
    options: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_home(tmp_path, monkeypatch)
    Path("job.py").write_text(blocks(PAGE)[0], "utf-8")
    Path("t.jsonl").write_text('{"tail": "N1"}\n', "utf-8")
    _, err = call("simulate", "job.py:app", *options, status=2)
    assert error in err


def rated() -> ps.StreamApplication:
    """Look-ups in a side input."""
    app = ps.StreamApplication("rated")
    app.store("rates", key=ps.String(), value=ps.Json(), side_inputs=["local.rates"])
    app.input("local.trips").process(Rated, stores=["rates"], id="rate").send_to(app.output("local.out"))
    return app


class Rated(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.rates: ps.KeyValueStore[str, int] = context.store("rates")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        collector.emit(value=self.rates.get("N1"))


def test_what_is_not_checked_is_said_before_the_first_life() -> None:
    app = rated()
    config = load_for_simulation(app)
    _, (note,) = prepare(app, {"local.trips": TRIPS}, config, 2, (), (), [], None, 60.0, False)
    assert note.startswith("side input `local.rates` has no messages, so that nothing is found in its store: give it ")


@pytest.mark.slow
def test_a_file_may_be_that_of_a_side_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home(tmp_path, monkeypatch)
    app = f"from {rated.__module__} import rated\n\napp = rated()\n"
    Path("job.py").write_text(app, "utf-8")
    Path("trips.jsonl").write_text('{"tail": "N1"}\n' * 20, "utf-8")
    Path("rates.jsonl").write_text('{"key": "N1", "value": 5}\n', "utf-8")
    Path("checks.py").write_text(
        "def rated(inputs, outputs, stores):\n    assert {each.value for each in outputs['local.out']} == {5}\n",
        "utf-8",
    )
    files = ["--inputs", "trips.jsonl", "--inputs", "rates=rates.jsonl"]
    fields = ["--key", "rates=key", "--value", "rates=value"]
    out, _ = call(
        "simulate",
        "job.py:app",
        *files,
        *fields,
        "--partitions",
        "1",
        "--seeds",
        "2",
        "--invariants",
        "checks.py:rated",
    )
    assert "everything holds: 2 lives" in out


@pytest.mark.slow
def test_nothing_is_left_of_a_simulation_that_is_ended(tmp_path: Path) -> None:
    """By SIGTERM, as a timeout of a build does."""
    (tmp_path / "job.py").write_text(blocks(PAGE)[0], "utf-8")
    (tmp_path / "trips.jsonl").write_text('{"tail": "N1"}\n' * 200, "utf-8")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, *PENSTOCK, "simulate", "job.py:app", "--inputs", "trips.jsonl", "--seeds", "100000"]
    environ = variables({"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)})
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: list(temporary.glob("penstock-simulate-*/errors-*")), "the worker processes")
        process.terminate()
        assert process.wait(120) == 143
    assert list(temporary.iterdir()) == []
