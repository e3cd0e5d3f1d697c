"""Jobs over folders: rows that fail, and the file, the row and the line by which everybody names them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml

import penstock as ps
from penstock.config.load import load_config
from penstock.errors import UserCodeError
from penstock.objects.open import open_store
from penstock.system.base import OffsetRange
from penstock.system.registry import open_systems
from penstock.testing.in_process import InProcessDriver
from tests.support.streams.folder import parquet
from tests.support.tools.cli import call
from tests.support.tools.pages import blocks
from tests.support.tools.places import ROOT

SCHEMA = pa.schema({"user": pa.string(), "amount": pa.float64()})
DEAD = {"task.dead.letter.stream": "local.dead"}


def application() -> ps.StreamApplication:
    app = ps.StreamApplication("amounts")
    rides = app.input("in.rides", value=ps.Columns(SCHEMA))
    rides.filter(ps.col("amount") > 1.0).send_to(app.output("local.out"))
    return app


class Jobs:
    """Runs a job over a folder."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "data" / "rides"
        self.folder.mkdir(parents=True)
        self.overrides: dict[str, object] = {
            "job.name": "amounts",
            "job.root": str(home / "jobs"),
            "systems.in.samza.factory": "files",
            "systems.in.folder": str(home / "data"),
            "systems.in.partitions": 2,
        }
        self.environ = {"PENSTOCK_HOME": str(home / "home")}

    def run(self, app: ps.StreamApplication, **more: object) -> None:
        config = load_config(overrides={**self.overrides, **more}, environ=self.environ)
        objects, systems = open_store(config.job.root), open_systems(config)
        for stream in ("out", "dead", "large"):
            with closing(systems["local"].admin()) as admin:
                admin.create_stream(stream, 1)
        with closing(InProcessDriver(app.graph(), config, objects, systems, until_latest=True)) as driver:
            driver.loop.run()

    def messages(self, stream: str) -> list[Any]:
        system = open_systems(load_config(overrides=self.overrides, environ=self.environ))["local"]
        with closing(system.admin()) as admin, closing(system.reader()) as reader:
            end = admin.offsets(stream)[0].upcoming
            chunks = reader.read(OffsetRange(ps.SystemStreamPartition("local", stream, 0), 0, end), 100)
            return [json.loads(message[3] or b"") for chunk in chunks for message in chunk]

    def options(self) -> list[str]:
        return [part for key, value in self.overrides.items() for part in ("-c", f"{key}={value}")]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    made = Jobs(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", made.environ["PENSTOCK_HOME"])
    return made


def test_declared_types_read_csv_and_bad_rows_are_dead_letters(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    rows = "".join(f"u{n},{n}.5\n" for n in range(7))
    (jobs.folder / "a.csv").write_text(f"user,amount\n{rows}b\nc,x\nd,8.25\n")
    (jobs.folder / "b.parquet").write_bytes(parquet([{"user": "p", "amount": 9.5}]))
    (jobs.folder / "c.json").write_text('{"user":"j","amount":10}\n\n{"user":"k","amount":"no"}\n')
    with caplog.at_level(logging.WARNING):
        jobs.run(application(), **DEAD)
    expected = {f"u{n}": n + 0.5 for n in range(1, 7)} | {"d": 8.25, "p": 9.5, "j": 10.0}
    assert {row["user"]: row["amount"] for row in jobs.messages("out")} == expected
    reasons = {letter["value"]: letter["reason"] for letter in jobs.messages("dead")}
    short = "`a.csv`, line 9: it has 1 cell, and the header has 2: b"
    assert short in reasons["b"]
    assert set(reasons) == {"b", '{"user":"c","amount":"x"}', '{"user":"k","amount":"no"}'}
    assert all("amount" in reason or short in reason for reason in reasons.values())
    assert not any("ps.String()" in reason for reason in reasons.values()), "that is no way out"
    assert "(a.csv:7, line 9)" in caplog.text or "(c.json:1, line 3)" in caplog.text


BAD = [
    b"b",
    b"5",
    b"{}",
    b"c,1,2",
    b'"v\n""w""",1,2',
    b"d,\xff",
    b"x" * 10_000,
    "é,1,2".encode(),
    b"n\0,1,2",
    b"`a`: line 1",
]
"""Rows that are no rows of two columns of text."""


@pytest.mark.parametrize("serde", [ps.Json(), ps.Columns(SCHEMA)])
def test_a_dead_letter_has_the_row_as_it_is_in_the_file_and_so_has_its_replay(jobs: Jobs, serde: Any) -> None:
    """Whatever the row is, and also a value that would be a message by itself. The reason is beside it."""
    app = ps.StreamApplication("amounts")
    app.input("in.rides", value=serde).send_to(app.output("local.out", value=ps.Json()))
    (jobs.folder / "a.csv").write_bytes(b"user,amount\ngood,1.5\n" + b"\n".join(BAD) + b"\nlast,2.5\n")
    jobs.run(app, **DEAD)
    assert [row["user"] for row in jobs.messages("out")] == ["good", "last"]
    letters = jobs.messages("dead")
    found = [bytes.fromhex(each["valueHex"]) if "valueHex" in each else each["value"].encode() for each in letters]
    assert sorted(found) == sorted(BAD)
    assert all("`a.csv`, line " in each["reason"] and "\0unreadable" not in each["reason"] for each in letters)
    call("stream", "create", "bad", "--partitions", "2", *jobs.options())
    call("stream", "replay", "dead", "--to", "local.bad", *jobs.options())
    shown = [json.loads(line) for line in call("stream", "tail", "bad", "--json", *jobs.options())[0].splitlines()]
    values = [bytes.fromhex(each["valueHex"]) if "valueHex" in each else each["value"].encode() for each in shown]
    assert sorted(values) == sorted(BAD)
    rows = [
        json.loads(line)
        for line in call("stream", "tail", "in.rides", "--json", "--from-beginning", *jobs.options())[0].splitlines()
    ]
    assert sum("it has" in each.get("unreadable", "") for each in rows) == len(BAD) - 1, "one is not UTF-8"


def test_a_row_without_a_text_is_not_replayed(jobs: Jobs) -> None:
    """One of Parquet: its dead letter has the reason, and no value."""
    table = pa.table({"user": ["a", "b"], "amount": [1.0, float("nan")]})
    pa.parquet.write_table(table, jobs.folder / "a.parquet")
    app = ps.StreamApplication("amounts")
    app.input("in.rides", value=ps.Json()).send_to(app.output("local.out", value=ps.Json()))
    jobs.run(app, **DEAD)
    (letter,) = jobs.messages("dead")
    assert (letter["value"], letter["unreadable"]) == (None, True)
    assert "`a.parquet`, row 1" in letter["reason"]
    error = " ".join(call("stream", "replay", "dead", "--to", "local.large", *jobs.options(), status=1)[1].split())
    assert "could not be read: correct it in another file" in error
    assert jobs.messages("large") == []


@pytest.mark.parametrize(
    ("name", "data", "place"),
    [
        ("a.csv", b'\nuser,amount\nu,1\n\n"v\n",2\nw,x\n', "(a.csv:2, line 7)"),
        ("day=1/a.csv", b"user,amount\nu\n", "(day=1/a.csv:0, line 2)"),
        ("a.json", b'{"user":"u"}\n\n\n{"user":1}\n', "(a.json:1, line 4)"),
        ("a.JSON", b"\xef\xbb\xbf\n?\n", "(a.JSON:0, line 2)"),
    ],
)
def test_an_error_names_file_row_and_line(jobs: Jobs, name: str, data: bytes, place: str) -> None:
    (jobs.folder / name).parent.mkdir(exist_ok=True)
    (jobs.folder / name).write_bytes(data)
    with pytest.raises(UserCodeError) as error:
        jobs.run(application())
    assert place in str(error.value)


def test_a_row_of_parquet_is_named_too(jobs: Jobs) -> None:
    """By rows, where the application fails and not the serde."""
    (jobs.folder / "a.parquet").write_bytes(parquet([{"user": "u", "amount": n} for n in range(5)]))

    def fail(ride: Mapping[str, Any]) -> Mapping[str, Any]:
        if ride["amount"] == 3:
            raise ValueError("three")
        return ride

    app = ps.StreamApplication("amounts")
    app.input("in.rides").map(fail).send_to(app.output("local.out"))
    with pytest.raises(UserCodeError) as error:
        jobs.run(app)
    assert "(a.parquet:3) key" in str(error.value)


def test_the_examples_of_the_page(jobs: Jobs) -> None:
    """The application over CSV, the command that shows a row, and the configuration of an order."""
    page = (ROOT / "docs" / "files.md").read_text("utf-8")
    rides = jobs.folder / "day-1.json"
    rides.write_text(page.split("echo '")[1].split("'")[0] + "\n")
    os.utime(rides, (1_714_564_800, 1_714_564_800))
    _, _, source = blocks(page)
    (command,) = [block for block in blocks(page, "sh") if "tail" in block]
    shown = page.split(command)[1].split("```\n")[2]
    options = [option.replace("systems.in.", "systems.lake.") for option in jobs.options()]
    words = command.replace("--config job.yaml ", "").split()[1:]
    assert call(*words, *options)[0] == shown
    found: dict[str, Any] = {"ps": ps}
    exec(compile(source, "docs/files.md", "exec"), found)
    (jobs.folder / "a.csv").write_text("user,amount\nu1,25.88\nu2,0.5\n")
    order = yaml.safe_load(blocks(page, "yaml")[1])
    jobs.overrides = {key.replace("systems.in.", "systems.lake."): value for key, value in jobs.overrides.items()}
    jobs.run(found["app"], **order, **{"systems.lake.listing": str(jobs.folder.parent / "others")})
    assert jobs.messages("large") == [{"user": "u1", "amount": 25.88}]


def test_commands_take_the_name_of_a_row(jobs: Jobs) -> None:
    (jobs.folder / "a.csv").write_text("user,amount\n" + "".join(f"u{n},{n}.5\n" for n in range(7)))
    (jobs.folder / "b.json").write_text('{"user":"j","amount":10}\n')
    jobs.run(application())
    (letter,) = call("stream", "tail", "in.rides", "--offset", "a.csv:3", *jobs.options())[0].splitlines()
    assert " a.csv:3\t" in letter
    assert '{"user":"u3","amount":"3.5"}' in letter
    where, offset = letter.split(" ")[0].split(":")
    shown = call("stream", "tail", "in.rides", "--partition", where, "--offset", offset, *jobs.options())[0]
    assert shown.strip() == letter
    several = call("stream", "tail", "in.rides", "--offset", "a.csv:3", "-n", "9", "--json", *jobs.options())[0]
    assert [json.loads(line)["name"] for line in several.splitlines()] == [f"a.csv:{n}" for n in range(3, 7)]
    asked = call("startpoint", "set", "amounts", "--stream", "in.rides", "--offset", "a.csv:3", *jobs.options())[0]
    assert f"partition {where}" in asked or f" {where} " in asked
    jobs.run(application())
    again = [row["user"] for row in jobs.messages("out")].count("u5")
    assert (again, [row["user"] for row in jobs.messages("out")].count("j")) == (2, 1)
