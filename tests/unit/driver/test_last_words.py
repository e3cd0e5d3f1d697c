"""The failure that `status` shows is that of the last start, wherever the start came to."""

from __future__ import annotations

import errno
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock import admin
from penstock.admin.job.status import JobStatus
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.driver.part import StopRequest
from penstock.driver.run import Run, show_refusal
from penstock.errors import ConfigError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore

PATHS = JobPaths("flights", "1")


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    overrides = {
        "job.name": "flights",
        "job.root": str(tmp_path / "jobs"),
        "job.lease.ms": 1_000,
        "job.logged.store.base.dir": str(tmp_path / "state"),
    }
    return load_config(overrides=overrides)


def status(config: JobConfig) -> JobStatus:
    overrides = {"job.root": config.job.root, "job.logged.store.base.dir": config.job.logged_store_base_dir}
    with admin.open_job("flights", overrides=overrides) as job:
        return admin.status(job)


def start(config: JobConfig, error: Exception | None, *, claims: bool) -> None:
    """A start that ends with an error, before or after it has claimed the log; None: it ends well."""
    with suppress(ConfigError), ExitStack() as undo:
        run = Run(config, StopRequest(), undo)
        if claims:
            run.log.claim(run.run_id)
        if error is not None:
            raise error


def error_of(config: JobConfig) -> str | None:
    failure = status(config).failure
    return None if failure is None else failure.error


def test_each_refused_start_replaces_the_failure_before(config: JobConfig) -> None:
    start(config, ConfigError("the stream is not there"), claims=False)
    assert error_of(config) == "the stream is not there", "also before anything was claimed"
    start(config, ConfigError("a failed run"), claims=True)
    assert error_of(config) == "a failed run"
    for number in range(3):
        start(config, ConfigError(f"refused {number}"), claims=False)
        assert error_of(config) == f"refused {number}"
    start(config, None, claims=True)
    assert error_of(config) is None
    start(config, ConfigError("after a rewind"), claims=True)
    assert error_of(config) == "after a rewind"


def test_a_refusal_before_the_lease_is_shown_of_a_job_that_was_started_before(config: JobConfig) -> None:
    show_refusal(config, ConfigError("a stream is missing"))
    assert not list(Path(config.job.root.removeprefix("file://")).rglob("*driver*")), "the job was never there"
    start(config, ConfigError("a failed run"), claims=True)
    show_refusal(config, ConfigError("a stream is missing"))
    assert error_of(config) == "a stream is missing"
    with ExitStack() as undo:
        Run(config, StopRequest(), undo)
        show_refusal(config, ConfigError("beside a run"))
        assert status(config).failure is None
    assert error_of(config) == "a stream is missing"


def full(*_: object, **__: object) -> bool:
    raise RetryableError("the object store has no room") from OSError(errno.ENOSPC, "No space left on device")


def test_a_full_job_root_does_not_silence_the_last_words(config: JobConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(ConfigError), ExitStack() as undo:
        run = Run(config, StopRequest(), undo)
        run.log.claim(run.run_id)
        for name in ("put_if_match", "put_if_absent", "delete_durably"):
            monkeypatch.setattr(FileObjectStore, name, full)
        raise ConfigError("the object store has no room")
    monkeypatch.undo()
    found = status(config)
    assert (found.status, error_of(config)) == ("failed", "the object store has no room")


def test_a_run_that_ends_well_leaves_no_room_taken(config: JobConfig) -> None:
    folder = Path(config.job.logged_store_base_dir) / "logs"
    with ExitStack() as undo:
        Run(config, StopRequest(), undo)
        (words,) = folder.glob("*.words")
        assert words.stat().st_blocks > 0
    assert list(folder.glob("*.words")) == []
