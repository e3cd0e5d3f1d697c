"""The ids of operators that are to drain alone: one that none has is an error that lists those which can."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock import admin
from penstock.api.requests import DrainMode, DrainNotification
from penstock.errors import ConfigError, NotFoundError, PenstockError
from tests.support.jobs.example_job import ExampleJob
from tests.support.tools.cli import call

KNOWN = "These can be drained alone: `"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    ExampleJob(tmp_path / "home", tmp_path / "kept")
    return tmp_path / "home"


ODD = ["", " ", "a b", "-a", "a\n", "a`b", "\udc80", "ä", "*", "a/b", "\x1b[31m"]


def test_ids_that_no_operator_has(home: Path) -> None:
    with admin.open_job("flights") as job:
        for odd in ODD:
            with pytest.raises(ConfigError, match=r"no operator has the id .*a name holds") as caught:
                admin.drain(job, operators=[odd])
            assert KNOWN in str(caught.value)
            str(caught.value).encode()
        with pytest.raises(NotFoundError, match=r"nothing waits in 2 operators .*`nobody` and `none`") as unknown:
            admin.drain(job, operators=["none", "nobody", "none"])
        assert KNOWN in str(unknown.value)
        assert admin.DrainUtils.notifications(job) == ()


def test_an_id_given_twice_is_one(home: Path) -> None:
    with admin.open_job("flights") as job:
        known = _known(job)[0]
        for given in ([known, known], known):
            assert admin.drain(job, operators=given).operators == (known,)
        assert [each.operators for each in admin.DrainUtils.notifications(job)] == [(known,)]


@pytest.mark.parametrize(("odd", "status"), [("", 2), ("a b", 2), ("nobody", 1)])
def test_the_command_says_so(home: Path, odd: str, status: int) -> None:
    assert KNOWN in call("drain", "flights", "--operator", odd, status=status)[1]


@pytest.mark.parametrize("operators", [("",), (None,), ("a", "")])
def test_a_request_without_an_id_is_none(operators: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match="operators by their ids"):
        DrainNotification(UUID(int=7), "r", DrainMode.OPERATORS, operators)


def _known(job: admin.FoundJob) -> list[str]:
    with pytest.raises(PenstockError) as caught:
        admin.drain(job, operators=["nobody"])
    return [part.strip("` ") for part in str(caught.value).split("alone: ")[1].replace(" and ", ",").split(",")]
